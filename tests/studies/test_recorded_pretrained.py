"""The page on pre-trained networks, the decision page and the README quote the runs on record."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from statistics import fmean

import pytest
from tests.studies.test_recorded_figures import rows_of

from wayfare.records.statistics import estimate
from wayfare.studies.study import load_study

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/results/pretrained.md").read_text(encoding="utf-8")

# The rows of tables: what a label begins with, the end of the study's name, the scheme, and what is trained.
KINDS = {
    "class means": ("", "statistics:means", ""),
    "statistics": ("", "statistics", ""),
    "head, MADS-RD": ("", "mads-rd", "head"),
    "head, MADS": ("", "mads", "head"),
    "norms in 7 blocks, MADS-RD": ("-trained", "mads-rd", "norms"),
    "adapters in 7 blocks, MADS-RD": ("-trained", "mads-rd", "adapters"),
    "adapters in 11 blocks, MADS-RD": ("-trained", "mads-rd", "adapters"),
    "last 4 blocks, MADS-RD": ("-trained", "mads-rd", "last-block"),
    "everything, MADS-RD": ("-trained", "mads-rd", "everything"),
    "from scratch, recommended settings": ("-scratch-best", "mads-rd", ""),
    "from scratch, MADS": ("-scratch", "mads", ""),
}
SECTIONS = dict(zip(("cifar10", "fashion"), PAGE.split("## Fashion-MNIST\n"), strict=True))
TABLES = {
    "cost": "| | seeds | accuracy, % | Mbit | J |",
    "divisions": "| | rho = 0.1 | rho = 1 | rho = 10 |",
    "trained": "| 20 kHz / 200 kHz / 1 MHz | rho = 0.1 | rho = 1 | rho = 10 |",
    "radios": "| | 20 kHz | 200 kHz | 1 MHz |",
}
DIVISIONS = ("0.1", "1.0", "10.0")
RADIOS = ("20000.0", "200000.0", "1000000.0")
# Everything was also tried with another rate.
OTHER_RATE = ("everything", "0.003")


def table_of(data: str, kind: str) -> dict[str, list[str]]:
    """The cells of a table behind its labels, without emphasis."""
    lines = SECTIONS[data].partition(f"{TABLES[kind]}\n")[2].splitlines()
    table = takewhile(lambda line: line.startswith("|"), lines)
    rows = [line.replace("*", "").removeprefix("|").removesuffix("|").split("|") for line in table]
    return {label.strip(): [cell.strip() for cell in cells] for label, *cells in rows[1:]}


def runs(data: str, label: str, concentration: str = "0.1", bandwidth_hz: str = "20000.0") -> list[dict[str, str]]:
    kind = max((kind for kind in KINDS if label.startswith(kind)), key=len)
    ending, scheme, trained = KINDS[kind]
    wanted = f"pretrained-{data}{ending}", scheme, concentration, bandwidth_hz
    columns = "study", "scheme", "learning.partition.concentration", "radio.bandwidth_hz"
    blocks = re.search(r"(\d+) blocks", kind)
    return [
        row
        for row in recorded(data)
        if tuple(row[column] for column in columns) == wanted
        and row["learning.trained"] in ("", trained)
        and (blocks is None or row["learning.trained_blocks"] == blocks[1])
        and not row.get("server.average_rounds")
        and (row["learning.trained"], row["learning.learning_rate"]) != OTHER_RATE
    ]


def recorded(data: str) -> list[dict[str, str]]:
    return rows_of(ROOT / f"docs/results/pretrained-{data}-runs.csv")


def accuracy_of(found: list[dict[str, str]]) -> str:
    scores = estimate([100 * float(row["score"]) for row in found])
    return f"{scores.mean:.1f} ± {scores.ci95:.1f}" if len(found) > 1 else f"{scores.mean:.1f}"


def is_rounded(shown: str, mean: float) -> bool:
    return shown.replace(",", "") == f"{mean:.{len(shown.partition('.')[2])}f}"


@pytest.mark.parametrize("data", SECTIONS)
def test_accuracy_bits_and_energy_are_those_of_the_runs(data: str) -> None:
    for label, (seeds, accuracy, megabits, joules) in table_of(data, "cost").items():
        found = runs(data, label)
        ran = sorted(int(row["seed"]) for row in found)
        assert len(set(ran)) == len(ran)
        in_order = len(ran) > 1 and ran == list(range(len(ran)))
        assert seeds == (f"0 to {len(ran) - 1}" if in_order else ", ".join(map(str, ran)))
        assert accuracy == accuracy_of(found)
        for text, name, unit in ((megabits, "bits", 1e6), (joules, "energy_joules", 1.0)):
            assert is_rounded(text, fmean(float(row[name]) for row in found) / unit), (label, text)


@pytest.mark.parametrize("data", SECTIONS)
def test_other_divisions_are_those_of_the_runs(data: str) -> None:
    for label, cells in table_of(data, "divisions").items():
        for concentration, cell in zip(DIVISIONS, cells, strict=True):
            found = runs(data, label, concentration, "1000000.0")
            assert cell == (accuracy_of(found) if found else ""), label


@pytest.mark.parametrize("data", SECTIONS)
def test_training_more_than_a_head_with_three_radios_is_that_of_the_runs(data: str) -> None:
    for label, cells in table_of(data, "trained").items():
        for concentration, cell in zip(DIVISIONS, cells, strict=True):
            for bandwidth_hz, text in zip(RADIOS, cell.split(" / "), strict=True):
                found = runs(data, label, concentration, bandwidth_hz)
                # Two runs from scratch are those of another page, which its own test checks.
                assert text == (accuracy_of(found) if found else "-") or text.endswith("](beyond.md)"), label


@pytest.mark.parametrize("data", SECTIONS)
def test_other_radios_are_those_of_the_runs(data: str) -> None:
    for label, cells in table_of(data, "radios").items():
        for bandwidth_hz, cell in zip(RADIOS, cells, strict=True):
            energies = [float(row["energy_joules"]) for row in runs(data, label, "0.1", bandwidth_hz)]
            assert is_rounded(cell, fmean(energies)) if energies else not cell, label


@pytest.mark.parametrize("data", SECTIONS)
def test_runs_on_record_belong_to_the_presets(data: str) -> None:
    for row in recorded(data):
        plan = load_study(row["study"])
        assert row["scheme"] in plan.schemes
        points = [point.scenario for point in plan.points]
        assert any(
            float(row["radio.bandwidth_hz"]) == point.radio.bandwidth_hz
            and float(row["learning.partition.concentration"]) == point.learning.partition.concentration  # type: ignore[union-attr]
            for point in points
        )


def test_training_on_after_statistics_is_that_of_the_runs() -> None:
    text = PAGE.partition("**After statistics,")[2].partition("\n\n")[0]
    continued = [
        row
        for row in recorded("cifar10")
        if row["study"] == "pretrained-cifar10-continued" and row["learning.learning_rate"] == "0.003"
    ]
    for bandwidth_hz in RADIOS:
        found = [row for row in continued if row["radio.bandwidth_hz"] == bandwidth_hz]
        assert [row["seed"] for row in found] == ["0", "1", "2"]
        assert "{:.1f}, {:.1f} and {:.1f} % on".format(*(100 * float(row["score"]) for row in found)) in text
        energy_joules = fmean(float(row["energy_joules"]) for row in found)
        assert f"{energy_joules:.{1 if energy_joules > 1 else 2}f} J" in text
    megabits = fmean(float(row["bits"]) for row in continued if row["radio.bandwidth_hz"] == RADIOS[0]) / 1e6
    assert f"{megabits:,.0f} Mbit" in text


def test_the_decision_page_has_the_energy_of_the_runs() -> None:
    page = (ROOT / "docs/how-to/practice.md").read_text(encoding="utf-8")
    lines = page.partition("| fleet of 20, rho = 0.1 | 20 kHz | 200 kHz | 1 MHz |\n")[2].splitlines()[1:]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in takewhile(bool, lines)]
    assert [row[0] for row in table] == ["statistics", "adapters in 7 blocks", "adapters in 11 blocks"]
    for label, *cells in table:
        for bandwidth_hz, cell in zip(RADIOS, cells, strict=True):
            found = runs("cifar10", label if label == "statistics" else f"{label}, MADS-RD", "0.1", bandwidth_hz)
            assert is_rounded(cell.removesuffix(" J"), fmean(float(row["energy_joules"]) for row in found)), label


def test_every_page_quotes_adapters_at_1_mhz_with_all_their_seeds() -> None:
    found = runs("cifar10", "adapters in 11 blocks, MADS-RD", "0.1", "1000000.0")
    scores = [100 * float(row["score"]) for row in found]
    seeds = f"seeds 0 to {len(found) - 1}"
    energy = f"{fmean(float(row['energy_joules']) for row in found):.0f} J"
    ends = f"from {min(scores):.2f} to {max(scores):.2f} %"
    assert f"{fmean(scores):.1f} % on average over {seeds}, {ends}, with {energy}" in PAGE
    assert f"adapters in 11 blocks, MADS-RD (seed 0; 1 MHz: {seeds})" in PAGE
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"low-rank adapters reach {fmean(scores):.1f} % with {energy} ({seeds})" in readme


def test_the_decision_page_has_accuracy_and_energy_of_training_more() -> None:
    page = (ROOT / "docs/how-to/practice.md").read_text(encoding="utf-8")
    lines = page.partition("| more than statistics | set |")[2].splitlines()[2:]
    table = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in takewhile(bool, lines)]
    statistics = fmean(float(row["score"]) for row in runs("cifar10", "statistics"))
    for points, settings, accuracy, energy, _ in table:
        kind = next(kind for kind, (_, _, trained) in KINDS.items() if trained and f'"{trained}"' in settings)
        blocks = re.search(r"trained_blocks = (\d+)", settings)
        label = re.sub(r"\d+ blocks", f"{blocks[1]} blocks", kind) if blocks else kind
        found = runs("cifar10", label, "0.1", "1000000.0")
        score = fmean(float(row["score"]) for row in found)
        assert points == f"{100 * (score - statistics):.0f} points"
        assert accuracy == f"{100 * score:.1f} % ({len(found)} seed{'s' if len(found) > 1 else ''})"
        assert is_rounded(energy.removesuffix(" J"), fmean(float(row["energy_joules"]) for row in found)), label


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/practice.md"])
def test_other_pages_quote_the_same_numbers(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for number in ("88.5 %", "38 Mbit", "0.03 J", "11,466 Mbit", "1,993 J", "31.8 %", "93.6 %"):
        assert number in text
        assert number in PAGE
