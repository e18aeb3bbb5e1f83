"""Draw learning curves from the CSV files of docs/results: one line per name, the mean over its seeds.

    python scripts/draw_curves.py PICTURE.png 'NAME=FILE.csv:SCHEME[:COLUMN=VALUE]...' ...

A column such as `radio.bandwidth_hz=20000.0` selects runs of a scheme if a study has several. Thin
lines are single seeds. `wayfare export` and `wayfare paper --record` write such files.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from wayfare.report.canvas import legend_beside, wide_figure

COLOURS = ("#0072B2", "#D55E00", "#7A3E9D", "#009E73", "#E69F00", "#56B4E9")


def curves_of(file: str, wanted: dict[str, str]) -> tuple[list[int], np.ndarray]:
    """Rounds, and the score of every seed (rows) in per cent, for the rows with the wanted values."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    with Path(file).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row.get(column) == value for column, value in wanted.items()):
                seed, round_ = int(row["seed"]), int(row["round"])
                if round_ in found[seed]:
                    raise SystemExit(
                        f"{file}: several runs of seed {seed} match {wanted}; name a column that distinguishes them"
                    )
                found[seed][round_] = 100 * float(row["score"])
    if not found:
        raise SystemExit(f"{file}: no run has {wanted}")
    rounds = sorted(next(iter(found.values())))
    return rounds, np.array([[scores[round_] for round_ in rounds] for scores in found.values()])


def main() -> None:
    """Read, draw, write."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    with wide_figure(sys.argv[1], width_in=7.6, height_in=3.8) as figure:
        axes = figure.add_subplot()
        for colour, argument in zip(COLOURS, sys.argv[2:], strict=False):
            name, source = argument.split("=", 1)
            file, scheme, *columns = source.split(":")
            wanted = {"scheme": scheme} | dict(column.split("=", 1) for column in columns)
            rounds, scores = curves_of(file, wanted)
            axes.plot(rounds, scores.T, color=colour, lw=0.8, alpha=0.35)
            axes.plot(rounds, scores.mean(axis=0), color=colour, lw=2, label=name)
        axes.set_xlabel("round")
        axes.set_ylabel("test accuracy (%)")
        legend_beside(figure, axes)


if __name__ == "__main__":
    main()
