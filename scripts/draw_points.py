"""Draw one measure of runs against another from a CSV file of `wayfare export`: one point per setting.

    python scripts/draw_points.py PICTURE.png RUNS.csv X Y COLUMN

`X` and `Y` are columns such as `kept_fraction` and `score`; shares are drawn in per cent. Runs that differ only in
their seed make one point, their mean. Points with one value of `COLUMN`, such as `mobility.contact_s`, make
one line.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from wayfare.report.canvas import legend_beside, wide_figure
from wayfare.report.labels import axis_label, value_label

COLOURS = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#08519C", "#08306B")
SHARES = {"score": "test accuracy (%)", "kept_fraction": "kept share of an update (%)"}


def points_of(file: str, x: str, y: str, column: str) -> dict[str, list[tuple[float, float]]]:
    """Points by the value of a column, from left to right."""
    runs: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with Path(file).open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = {x, y, column} - set(reader.fieldnames or ())
        if missing:
            raise SystemExit(f"{file}: no column {', '.join(sorted(missing))}")
        settings = [name for name in reader.fieldnames or () if "." in name or name == "scheme"]
        for row in reader:
            place = tuple(row[name] for name in settings)
            runs[place].append((measure(row, x), measure(row, y)))
    lines_: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for place, found in runs.items():
        lines_[place[settings.index(column)]].append((fmean(one[0] for one in found), fmean(one[1] for one in found)))
    return {value: sorted(found) for value, found in lines_.items()}


def measure(row: dict[str, str], name: str) -> float:
    """A value of a run, in per cent if it is a share."""
    return float(row[name]) * (100 if name in SHARES else 1)


def main() -> None:
    """Read, draw, write."""
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    picture, file, x, y, column = sys.argv[1:]
    with wide_figure(picture, width_in=7.6, height_in=3.8) as figure:
        axes = figure.add_subplot()
        for place, (value, points) in enumerate(points_of(file, x, y, column).items()):
            colour = COLOURS[place % len(COLOURS)]
            label = value_label(column, f"{float(value):g}")
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", ms=5, lw=1.2, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(SHARES.get(x) or axis_label(x))
        axes.set_ylabel(SHARES.get(y) or axis_label(y))
        legend_beside(figure, axes)


if __name__ == "__main__":
    main()
