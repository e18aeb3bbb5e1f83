"""Draw accuracy against epsilon from CSV files of `wayfare export`: one line per study, fleet and scheme.

    python scripts/draw_privacy.py PICTURE.png RUNS.csv...

A point is the mean over seeds at one noise, with the clip norm that gives the best mean. A dotted line is the same
scheme without noise.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from wayfare.methods import scheme_label
from wayfare.report.canvas import legend_beside, wide_figure

COLOURS = ("#9ECAE1", "#4292C6", "#08306B", "#FDAE6B", "#E6550D", "#8C2D04")
_NOISE = re.compile(r"(.+?) \+ private\(noise=([\d.]+),")
_SIZES = {"private": "84,618 parameters", "private-head": "2,570 parameters"}


def lines_of(files: list[str]) -> dict[str, dict[float, tuple[float, float]]]:
    """(epsilon, accuracy in per cent) by noise, for every line; noise 0 is without noise."""
    runs: dict[tuple[str, float, str], list[tuple[float, float]]] = defaultdict(list)
    for file in files:
        with Path(file).open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows):
                found = _NOISE.match(row["scheme"])
                base, noise = (found[1], float(found[2])) if found else (row["scheme"], 0.0)
                devices = row.get("fleet.devices") or "20"
                line = f"{scheme_label(base)}, {_SIZES[row['study']]}, {devices} devices"
                runs[line, noise, row["scheme"]].append((float(row["epsilon"] or "inf"), 100 * float(row["score"])))
    lines: dict[str, dict[float, tuple[float, float]]] = defaultdict(dict)
    for (line, noise, _), values in runs.items():
        mean = fmean(epsilon for epsilon, _ in values), fmean(score for _, score in values)
        lines[line][noise] = max(mean, lines[line].get(noise, mean), key=lambda point: point[1])
    return lines


def main() -> None:
    """Read, draw, write."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    with wide_figure(sys.argv[1], width_in=8.6, height_in=4.0) as figure:
        axes = figure.add_subplot()
        for place, (line, points) in enumerate(sorted(lines_of(sys.argv[2:]).items())):
            colour = COLOURS[place % len(COLOURS)]
            private = sorted(point for noise, point in points.items() if noise > 0)
            axes.plot(*zip(*private, strict=True), color=colour, marker="o", ms=5, lw=1.2, label=line)
            if 0.0 in points:
                axes.axhline(points[0.0][1], color=colour, lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xlabel("epsilon of the device with the most releases, at delta = 1e-5")
        axes.set_ylabel("test accuracy (%)")
        legend_beside(figure, axes)


if __name__ == "__main__":
    main()
