"""Figures of studies, as far as a machine can look at them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from wayfare.report.study_figures import study_figure
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
