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
    "from scratch, recommended settings": ("pretrained-cifar10-scratch-best", "mads-rd"),
    "from scratch, MADS": ("pretrained-cifar10-scratch", "mads"),
}


def runs(study: str, scheme: str) -> list[dict[str, str]]:
    """The runs of a scheme at 20 kHz."""
    return [
        row
        for row in rows_of(RUNS)
        if (row["study"], row["scheme"], row["radio.bandwidth_hz"]) == (study, scheme, "20000.0")
    ]


@pytest.mark.parametrize("label", ROWS)
def test_the_table_is_that_of_the_runs(label: str) -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {label} |"))
    _, seeds, accuracy, megabits, joules = (cell.strip(" *") for cell in line.strip("|").split("|"))
    found = runs(*ROWS[label])
    assert seeds == ", ".join(row["seed"] for row in found)
    scores = estimate([100 * float(row["score"]) for row in found])
    assert accuracy == (f"{scores.mean:.1f} ± {scores.ci95:.1f}" if len(found) > 1 else f"{scores.mean:.1f}")
    for text, name, unit in ((megabits, "bits", 1e6), (joules, "energy_joules", 1.0)):
        shown, mean = text.replace(",", ""), fmean(float(row[name]) for row in found) / unit
        assert shown == f"{mean:.{len(shown.partition('.')[2])}f}"


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
    for number in ("88.5 %", "38 Mbit", "0.02 J", "11,657 Mbit", "1,931 J", "37.0 %"):
        assert number in text
        assert number in PAGE
