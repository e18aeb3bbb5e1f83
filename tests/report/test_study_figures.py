"""Figures of studies: their text, bars and lines."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from wayfare.records.statistics import estimate
from wayfare.report.canvas import wide_figure
from wayfare.report.study_figures import distance_apart, interval_bars, study_figure
from wayfare.studies.study import plan_of
from wayfare.studies.sweeping import sweep


def _pixels(file: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", file.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("column", [False, True])
def test_points_with_long_names_stand_below_each_other(column: bool, tmp_path: Path) -> None:
    heights = []
    for number in (2, 14):
        paired = [
            {"label": f"the radio of choice {place}", "radio": {"range_m": 90.0 + place}} for place in range(number)
        ]
        small = {"rounds": 4, "fleet": {"devices": 3}, "learning": {"hidden": [8]}}
        study = {"name": f"named-{number}", "schemes": ["mads", "optimal", "afl"], "seeds": 1}
        results = sweep(plan_of({**study, "set": small, "paired": paired}), out=tmp_path, jobs=1).results
        study_figure(results, "score", tmp_path / "figure.png", column=column)
        heights.append(_pixels(tmp_path / "figure.png")[1])
    assert heights[1] > heights[0]


def test_small_differences_of_accuracy_are_drawn_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"rounds": 4, "fleet": {"devices": 3}, "learning": {"hidden": [8]}}
    grid = {"radio": {"range_m": [90.0, 91.0]}}
    study = {"name": "alike", "schemes": ["mads"], "seeds": 1, "set": small, "grid": grid}
    results = sweep(plan_of(study), out=tmp_path, jobs=1).results
    spans: list[Any] = []

    def spanned(file: Path, **size: float) -> Any:
        spans.clear()
        return wide_figure(file, **size)

    monkeypatch.setattr("wayfare.report.canvas.wide_figure", spanned)
    monkeypatch.setattr(
        "wayfare.report.canvas.legend_beside", lambda _, axes: spans.append((axes.get_ylim(), len(axes.lines)))
    )
    study_figure(results, "score", tmp_path / "score.png")
    (low, high), _ = spans[0]
    assert high - low >= 5.0
    study_figure(results, "energy_joules", tmp_path / "energy.png")
    (low, high), _ = spans[0]
    assert 0 <= low < results.schemes[0].budget_joules < high


def test_a_figure_says_on_how_many_worlds_it_stands(tmp_path: Path) -> None:
    small = {"rounds": 4, "fleet": {"devices": 3}, "learning": {"hidden": [8]}}
    said = {
        1: "one seed alone is not a result",
        2: "2 seeds: mean, lowest to highest",
        3: "3 seeds: mean and 95 % interval",
    }
    for seeds, words in said.items():
        study = {"name": f"worlds-{seeds}", "schemes": ["mads"], "seeds": seeds, "set": small}
        results = sweep(plan_of(study), out=tmp_path, jobs=1).results
        study_figure(results, "score", tmp_path / "score.svg")
        assert words in (tmp_path / "score.svg").read_text(encoding="utf-8")


def test_bars_of_two_seeds_go_from_the_lower_to_the_higher() -> None:
    """Their 95 % interval is 12.7 times as wide, and would hide what the figure shows."""
    two, three = estimate([0.2, 0.3]), estimate([0.2, 0.3, 0.4])
    assert three.ci95 is not None
    assert interval_bars(100.0, [two], seeds=2) == [pytest.approx(5.0)]
    assert interval_bars(100.0, [three], seeds=3) == [pytest.approx(100 * three.ci95)]
    assert interval_bars(100.0, [estimate([0.2])], seeds=1) is None


def test_schemes_stand_beside_each_other_and_near_their_tick() -> None:
    speeds = [math.log(speed) for speed in (1, 5, 10, 20, 40)]
    assert distance_apart(speeds, 2) == pytest.approx(0.012 * math.log(40))
    assert 11 * distance_apart(speeds, 11) == pytest.approx(0.2 * math.log(2))
    assert distance_apart([3.0], 4) == distance_apart([], 4) == 0.0
