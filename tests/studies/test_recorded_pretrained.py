"""The page on pre-trained networks, the decision page and the README quote the runs on record."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from tests.studies.test_recorded_figures import rows_of

from wayfare.records.statistics import estimate
from wayfare.studies.study import load_study

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "docs/results/pretrained-cifar10-runs.csv"
PAGE = (ROOT / "docs/results/pretrained.md").read_text(encoding="utf-8")

ROWS = {
    "class means (`statistics:means`)": ("pretrained-cifar10", "statistics:means"),
    "**statistics**": ("pretrained-cifar10", "statistics"),
    "head, MADS-RD": ("pretrained-cifar10", "mads-rd"),
    "head, MADS": ("pretrained-cifar10", "mads"),
    "last 4 blocks, MADS-RD": ("pretrained-cifar10-trained", "mads-rd"),
    "from scratch, recommended settings": ("pretrained-cifar10-scratch-best", "mads-rd"),
    "from scratch, MADS": ("pretrained-cifar10-scratch", "mads"),
}


DIVISIONS = {"0.1": 1, "1.0": 2, "10.0": 3}
RADIOS = {"20000.0": 1, "200000.0": 2, "1000000.0": 3}


def runs(study: str, scheme: str, concentration: str = "0.1", bandwidth_hz: str = "20000.0") -> list[dict[str, str]]:
    wanted = study, scheme, concentration, bandwidth_hz
    columns = "study", "scheme", "learning.partition.concentration", "radio.bandwidth_hz"
    return [row for row in rows_of(RUNS) if tuple(row[column] for column in columns) == wanted]


def cells_of(label: str) -> list[str]:
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip(" *") for cell in line.strip("|").split("|")]


def accuracy_of(found: list[dict[str, str]]) -> str:
    scores = estimate([100 * float(row["score"]) for row in found])
    return f"{scores.mean:.1f} ± {scores.ci95:.1f}" if len(found) > 1 else f"{scores.mean:.1f}"


def is_rounded(shown: str, mean: float) -> bool:
    return shown.replace(",", "") == f"{mean:.{len(shown.partition('.')[2])}f}"


@pytest.mark.parametrize("label", ROWS)
def test_the_table_is_that_of_the_runs(label: str) -> None:
    _, seeds, accuracy, megabits, joules = cells_of(label)
    found = runs(*ROWS[label])
    numbers = [int(row["seed"]) for row in found]
    assert sorted(numbers) == list(range(len(found)))
    assert seeds == (f"0 to {len(found) - 1}" if len(found) > 1 else "0")
    assert accuracy == accuracy_of(found)
    for text, name, unit in ((megabits, "bits", 1e6), (joules, "energy_joules", 1.0)):
        assert is_rounded(text, fmean(float(row[name]) for row in found) / unit)


@pytest.mark.parametrize(
    ("label", "study", "scheme", "bandwidth_hz"),
    [
        ("class means", "pretrained-cifar10", "statistics:means", "20000.0"),
        ("statistics", "pretrained-cifar10", "statistics", "200000.0"),
        ("head, MADS-RD", "pretrained-cifar10", "mads-rd", "1000000.0"),
        ("last 4 blocks, MADS-RD, 1 MHz (seed 0)", "pretrained-cifar10-trained", "mads-rd", "1000000.0"),
    ],
)
def test_other_divisions_are_those_of_the_runs(label: str, study: str, scheme: str, bandwidth_hz: str) -> None:
    section = PAGE.partition("## Other divisions and radios")[2]
    line = next(line for line in section.splitlines() if line.startswith(f"| {label} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    for concentration, column in DIVISIONS.items():
        assert cells[column] == accuracy_of(runs(study, scheme, concentration, bandwidth_hz))


@pytest.mark.parametrize(
    ("label", "study", "scheme"),
    [
        ("statistics", "pretrained-cifar10", "statistics"),
        ("head, MADS-RD", "pretrained-cifar10", "mads-rd"),
        ("head, MADS", "pretrained-cifar10", "mads"),
        ("last 4 blocks, MADS-RD (seed 0)", "pretrained-cifar10-trained", "mads-rd"),
    ],
)
def test_other_radios_are_those_of_the_runs(label: str, study: str, scheme: str) -> None:
    section = PAGE.partition("What the radio changes")[2]
    line = next(line for line in section.splitlines() if line.startswith(f"| {label} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    for bandwidth_hz, column in RADIOS.items():
        found = runs(study, scheme, "0.1", bandwidth_hz)
        energies = [float(row["energy_joules"]) for row in found]
        assert is_rounded(cells[column], fmean(energies)) if energies else not cells[column]


def test_runs_on_record_belong_to_the_presets() -> None:
    for row in rows_of(RUNS):
        plan = load_study(row["study"])
        assert row["scheme"] in plan.schemes
        points = [point.scenario for point in plan.points]
        assert any(
            float(row["radio.bandwidth_hz"]) == point.radio.bandwidth_hz
            and float(row["learning.partition.concentration"]) == point.learning.partition.concentration  # type: ignore[union-attr]
            for point in points
        )


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/practice.md"])
def test_other_pages_quote_the_same_numbers(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for number in ("88.5 %", "38 Mbit", "0.03 J", "11,657 Mbit", "1,931 J", "37.0 %"):
        assert number in text
        assert number in PAGE
