"""Draw final accuracy against bits and energy from a runs file of docs/results: a column of panels per value of COLUMN.

    python scripts/draw_frontier.py PICTURE.png RUNS.csv PANELS ALONG NAME=SCHEME[:COLUMN=VALUE]... ...

`PANELS` and `ALONG` are columns such as `learning.partition.concentration` and `radio.bandwidth_hz`. A name makes one
line per panel. Its points are the values of `ALONG`, in rising order: the first has a ring. Runs that differ only in
their seed make one point, their mean.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib.ticker import LogLocator

from draw_curves import COLOURS, LOGARITHMIC
from wayfare.report.canvas import legend_beside, wide_figure
from wayfare.report.labels import value_label

Row = dict[str, str]


def points_of(rows: list[Row], wanted: Row, along: str, against: str) -> list[tuple[float, float]]:
    """The mean position and the mean score in per cent of every value of a column, in its rising order."""
    _, unit = LOGARITHMIC[against]
    found: dict[float, list[Row]] = defaultdict(list)
    for row in rows:
        if all(row[column] == value for column, value in wanted.items()):
            found[float(row[along])].append(row)
    for value, runs in found.items():
        if len({row["seed"] for row in runs}) < len(runs):
            raise SystemExit(f"{along} = {value:g}: several runs of a seed match {wanted}; name a column more")
    return [
        (fmean(float(row[against]) for row in runs) / unit, 100 * fmean(float(row["score"]) for row in runs))
        for _, runs in sorted(found.items())
    ]


def main() -> None:
    """Read, draw, write."""
    if len(sys.argv) < 6:
        raise SystemExit(__doc__)
    picture, file, panels, along, *lines = sys.argv[1:]
    with Path(file).open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    values = sorted({float(row[panels]) for row in rows})
    with wide_figure(picture, width_in=10.0, height_in=5.2) as figure:
        grid = figure.subplots(len(LOGARITHMIC), len(values), sharey=True, sharex="row", squeeze=False)
        for (against, (label, _)), line_of_panels in zip(LOGARITHMIC.items(), grid, strict=True):
            for value, axes in zip(values, line_of_panels, strict=True):
                for colour, line in zip(COLOURS, lines, strict=True):
                    name, source = line.split("=", 1)
                    words = source.split(":")
                    scheme = ":".join(word for word in words if "=" not in word)
                    wanted = {"scheme": scheme, panels: str(value)}
                    wanted |= dict(word.split("=", 1) for word in words if "=" in word)
                    points = points_of(rows, wanted, along, against)
                    if not points:
                        raise SystemExit(f"{file}: no run has {wanted}")
                    axes.plot(*zip(*points, strict=True), color=colour, marker="o", ms=4, lw=1.2, label=name)
                    axes.plot(*points[0], color=colour, marker="o", ms=9, mfc="none")
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(numticks=3))
                axes.xaxis.set_major_formatter("{x:,g}")
                axes.set_xlabel(label)
            line_of_panels[0].set_ylabel("test accuracy (%)")
        for value, axes in zip(values, grid[0], strict=True):
            axes.set_title(value_label(panels, f"{value:g}"))
        legend_beside(figure, grid[0][-1])


if __name__ == "__main__":
    main()
