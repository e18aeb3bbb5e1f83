"""The page on pre-trained networks, the decision page and the README quote the runs on record."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from runpy import run_path
from statistics import fmean
from typing import Any

import pytest
from tests.studies.test_recorded_figures import rows_of

from wayfare.records.statistics import estimate
from wayfare.studies.study import load_study

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/results/pretrained.md").read_text(encoding="utf-8")
PRACTICE = (ROOT / "docs/how-to/practice.md").read_text(encoding="utf-8")
TASKS = ("cifar10", "fashion")
RADIOS = ("20000.0", "200000.0", "1000000.0")
# The study of what trains more than the head, without statistics.
MORE = {"study": "pretrained-cifar10-trained"}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return run_path(str(ROOT / "scripts/record_pretrained.py"))


def recorded(task: str, kind: str = "runs", **wanted: str) -> list[dict[str, str]]:
    """Runs, or their evaluations, at rho = 0.1 with the wanted last parts of columns."""
    wanted = {"concentration": "0.1"} | wanted
    return [
        row
        for row in rows_of(ROOT / f"docs/results/pretrained-{task}-{kind}.csv")
        if all(
            {name.split(".")[-1]: cell for name, cell in row.items()}[name] == value for name, value in wanted.items()
        )
    ]


def adapters(bandwidth_hz: str) -> list[dict[str, str]]:
    return recorded("cifar10", **MORE, trained="adapters", trained_blocks="11", bandwidth_hz=bandwidth_hz)


def percents(runs: list[dict[str, str]]) -> list[float]:
    return [100 * float(row["score"]) for row in runs]


def joules(runs: list[dict[str, str]]) -> float:
    return fmean(float(row["energy_joules"]) for row in runs)


def is_rounded(shown: str, mean: float) -> bool:
    return shown.replace(",", "") == f"{mean:.{len(shown.partition('.')[2])}f}"


def table_after(text: str, heading: str) -> list[list[str]]:
    lines = text.partition(heading)[2].splitlines()[2:]
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in takewhile(bool, lines)]


def test_writing_the_page_again_changes_nothing(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert script["written"](PAGE) == PAGE


def test_a_row_has_the_mean_and_interval_of_its_seeds() -> None:
    found = adapters("20000.0")
    scores = estimate(percents(found))
    assert [row["seed"] for row in found] == [str(seed) for seed in range(10)]
    megabits = fmean(float(row["bits"]) for row in found) / 1e6
    shown = f"{scores.mean:.1f} ± {scores.ci95:.1f} | {percents(found)[0]:.1f} | {megabits:,.0f} | {joules(found):,.0f}"
    assert f"| adapters in 11 blocks, MADS-RD | 0 to 9 | {shown} |" in PAGE


@pytest.mark.parametrize(("column", "unit"), [("bits", "Mbit"), ("energy_joules", "J")])
def test_the_frontier_has_the_last_evaluation_within_a_budget(column: str, unit: str) -> None:
    size, limit = (1e6, 4_000) if unit == "Mbit" else (1.0, 100)
    wanted = MORE | {"trained": "adapters", "trained_blocks": "11", "seed": "0"}
    shown = []
    for bandwidth_hz in RADIOS:
        found = recorded("cifar10", "evaluations", **wanted, bandwidth_hz=bandwidth_hz)
        latest = max((row for row in found if float(row[column]) <= limit * size), key=lambda row: int(row["round"]))
        shown.append(f"{100 * float(latest['score']):.1f}")
    heading = next(line for line in PAGE.splitlines() if f"| {limit:,} {unit} |" in line)
    cells = next(row for row in table_after(PAGE, heading) if row[0] == "adapters in 11 blocks, MADS-RD")
    assert cells[heading.split(" | ").index(f"{limit:,} {unit}")] == " / ".join(shown)


def test_a_new_run_replaces_the_one_of_its_place(script: dict[str, Any]) -> None:
    old = [
        {"study": study, "scheme": "mads", "seed": seed, "radio.bandwidth_hz": "1.0", "score": "0.1"}
        for study, seed in (("a", "0"), ("b", "0"), ("b", "1"))
    ]
    new = [old[1] | {"score": "0.2"}, old[0] | {"seed": "7"}, old[2] | {"radio.bandwidth_hz": "2.0"}]
    assert script["merged"](old, new) == [old[0], new[1], old[2], new[0], new[2]]


@pytest.mark.parametrize("column", ["learning.trained", "learning.learning_rate"])
def test_a_run_on_record_is_found_by_what_its_scheme_uses(script: dict[str, Any], column: str) -> None:
    scheme = "statistics" if column == "learning.learning_rate" else "mads"
    old = {"study": "a", "scheme": scheme, "seed": "0", "learning.trained": "", "learning.learning_rate": "0.1"}
    new = old | ({column: "head"} if scheme == "mads" else {column: ""})
    assert script["merged"]([old], [new]) == [new]


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return run_path(str(ROOT / "scripts/run_missing_pretrained.py"))["plans"]


def test_missing_runs_are_those_that_are_not_on_record(plans: Any) -> None:
    missing = sum(len(plan.points) * len(plan.seeds) for _, plan in plans("pretrained-cifar10-trained", ["everything"]))
    found = re.search(r"\| everything, MADS-RD \| 9 of 9 \| (\d+) of 90 \|", PAGE.partition("## What has not run")[2])
    assert found is not None
    assert missing == 90 - int(found[1])


def test_missing_runs_at_other_points_have_other_folders(plans: Any) -> None:
    rows = [name for row in ("norms", "last") for name, _ in plans("pretrained-cifar10-trained", [row])]
    radios = [
        name for hz in (20e3, 1e6) for name, _ in plans("pretrained-fashion-trained", at={"radio.bandwidth_hz": hz})
    ]
    for names in (rows, radios):
        assert len(names) > 1
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("task", TASKS)
def test_runs_on_record_belong_to_the_presets(task: str) -> None:
    for row in rows_of(ROOT / f"docs/results/pretrained-{task}-runs.csv"):
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
    continued = {hz: recorded("cifar10", study="pretrained-cifar10-continued", bandwidth_hz=hz) for hz in RADIOS}
    for runs in continued.values():
        scores = estimate(percents(runs))
        assert f"{scores.mean:.1f} ± {scores.ci95:.1f} %" in text
        assert f"{joules(runs):.{1 if joules(runs) > 1 else 2}f} J" in text
    narrow = continued[RADIOS[0]]
    assert [row["seed"] for row in narrow] == [str(seed) for seed in range(10)]
    assert f"{fmean(float(row['bits']) for row in narrow) / 1e6:,.0f} Mbit" in text
    assert gains_of_training_on("cifar10") in text.replace(" points over", " over")


def test_training_on_after_statistics_gains_on_the_second_task_too() -> None:
    text = PAGE.partition("- **The head after statistics gains here too**")[2].partition("\n")[0]
    assert gains_of_training_on("fashion") in text.replace(" points over", " over")


def gains_of_training_on(task: str) -> str:
    """What training the head after statistics gains at 20 kHz, on the same seeds."""
    narrow, gains = recorded(task, study=f"pretrained-{task}-continued", bandwidth_hz=RADIOS[0]), []
    for scheme in ("statistics", "mads-rd"):
        others = recorded(task, study=f"pretrained-{task}", scheme=scheme, bandwidth_hz=RADIOS[0])
        gains.append(estimate([one - other for one, other in zip(percents(narrow), percents(others), strict=True)]))
    over_statistics, over_head = (f"{gain.mean:.1f} ± {gain.ci95:.1f}" for gain in gains)
    return f"{over_statistics} over statistics and {over_head} over the head alone"


def test_the_decision_page_has_the_energy_of_the_runs() -> None:
    rows = {
        "statistics": {"scheme": "statistics"},
        "adapters in 7 blocks": MORE | {"trained": "adapters", "trained_blocks": "7", "average_rounds": ""},
        "adapters in 11 blocks": MORE | {"trained": "adapters", "trained_blocks": "11"},
    }
    table = table_after(PRACTICE, "| fleet of 20, rho = 0.1 | 20 kHz | 200 kHz | 1 MHz |")
    assert [row[0] for row in table] == list(rows)
    for label, *cells in table:
        for bandwidth_hz, cell in zip(RADIOS, cells, strict=True):
            found = recorded("cifar10", **rows[label], bandwidth_hz=bandwidth_hz)
            assert is_rounded(cell.removesuffix(" J"), joules(found)), label


def test_the_decision_page_has_accuracy_and_energy_of_training_more() -> None:
    statistics = fmean(percents(recorded("cifar10", scheme="statistics", bandwidth_hz=RADIOS[0])))
    for points, settings, accuracy, energy, _ in table_after(PRACTICE, "| more than statistics | set |"):
        wanted = dict(re.findall(r"(trained|trained_blocks) = \"?([\w-]+)", settings))
        found = recorded("cifar10", **MORE, **wanted, bandwidth_hz=RADIOS[-1])
        score = fmean(percents(found))
        assert points == f"{score - statistics:.0f} points"
        assert accuracy == f"{score:.1f} % ({len(found)} seed{'s' if len(found) > 1 else ''})"
        assert is_rounded(energy.removesuffix(" J"), joules(found)), settings


def test_the_page_says_what_adapters_and_everything_reach() -> None:
    wide, narrow = adapters(RADIOS[-1]), adapters(RADIOS[0])
    scores = percents(wide)
    ends = f"from {min(scores):.2f} to {max(scores):.2f} %"
    assert f"reach {fmean(scores):.1f} % at 1 MHz and rho = 0.1 too**, {ends}, with {joules(wide):.0f} J" in PAGE
    everything = recorded("cifar10", trained="everything", learning_rate="0.01", bandwidth_hz=RADIOS[0])
    each = "{:.1f}, {:.1f} and {:.1f} % on seeds 0 to 2, where adapters reach {:.1f}, {:.1f} and {:.1f} %"
    assert each.format(*percents(everything), *percents(narrow)) in PAGE


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/practice.md"])
def test_other_pages_quote_the_same_numbers(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for number in ("88.5 %", "38 Mbit", "0.03 J", "11,520 Mbit", "2,007 J", "33.3 %", "92.8 %"):
        assert number in text
        assert number in PAGE
