"""Draw learning curves from the CSV files of docs/results: one line per name, the mean over its seeds.

    python scripts/draw_curves.py PICTURE.png [--against bits,energy_joules] NAME=FILE.csv:SCHEME[:COLUMN=VALUE]... ...

A column such as `radio.bandwidth_hz=20000.0` selects runs of a scheme if a study has several. Thin
lines are single seeds. `--against` draws one panel for each column, on a logarithmic axis, instead of one against
rounds. `wayfare export` and `wayfare paper --record` write such files.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator

from wayfare.report.canvas import legend_beside, wide_figure

COLOURS = ("#0072B2", "#D55E00", "#7A3E9D", "#009E73", "#404040", "#E69F00", "#56B4E9")


# Columns on a logarithmic axis: their label and the size of its unit.
LOGARITHMIC = {"bits": ("sent by the fleet (Mbit)", 1e6), "energy_joules": ("energy of the fleet (J)", 1.0)}


def curves_of(file: str, wanted: dict[str, str], against: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the x axis, and scores in per cent, of every seed (rows), for the rows with the wanted values."""
    _, unit = LOGARITHMIC.get(against, ("", 1.0))
    found: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
    with Path(file).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row.get(column) == value for column, value in wanted.items()):
                seed, round_ = int(row["seed"]), int(row["round"])
                if round_ in found[seed]:
                    raise SystemExit(
                        f"{file}: several runs of seed {seed} match {wanted}; name a column that distinguishes them"
                    )
                found[seed][round_] = float(row[against]) / unit, 100 * float(row["score"])
    if not found:
        raise SystemExit(f"{file}: no run has {wanted}")
    rounds = sorted(next(iter(found.values())))
    every = np.array([[points[round_] for round_ in rounds] for points in found.values()])
    if against in LOGARITHMIC:
        # Nothing is sent before the first contact, and a logarithmic axis has no 0.
        every = every[:, (every[..., 0] > 0).all(axis=0)]
    return every[..., 0], every[..., 1]


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture")
    parser.add_argument("--against", default="round", help="columns, separated by commas")
    parser.add_argument("curves", nargs="+", metavar="NAME=FILE.csv:SCHEME[:COLUMN=VALUE]...")
    arguments = parser.parse_args()
    columns = arguments.against.split(",")
    if len(arguments.curves) > len(COLOURS):
        parser.error(f"{len(arguments.curves)} curves, but only {len(COLOURS)} colours")
    with wide_figure(arguments.picture, width_in=7.6 + 2.4 * (len(columns) - 1), height_in=3.8) as figure:
        panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, against in zip(panels, columns, strict=True):
            for colour, curve in zip(COLOURS, arguments.curves, strict=False):
                name, source = curve.split("=", 1)
                file, *words = source.split(":")
                scheme = ":".join(word for word in words if "=" not in word)
                wanted = {"scheme": scheme} | dict(word.split("=", 1) for word in words if "=" in word)
                positions, scores = curves_of(file, wanted, against)
                axes.plot(positions.T, scores.T, color=colour, lw=0.8, alpha=0.35)
                axes.plot(positions.mean(axis=0), scores.mean(axis=0), color=colour, lw=2, marker=".", label=name)
            axes.set_xlabel(LOGARITHMIC.get(against, (against, 1.0))[0])
            if against in LOGARITHMIC:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(numticks=6))
                axes.xaxis.set_major_formatter("{x:,g}")
        panels[0].set_ylabel("test accuracy (%)")
        legend_beside(figure, panels[0])


if __name__ == "__main__":
    main()
