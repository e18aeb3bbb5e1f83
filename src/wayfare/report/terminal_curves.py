"""Learning curves in a terminal, drawn with Braille characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.text import Text

from wayfare.arrays import Floats
from wayfare.methods import scheme_label
from wayfare.records import RunRecord, SchemeSummary
from wayfare.report.labels import metric_words_and_unit
from wayfare.report.palette import look_of
from wayfare.report.tables import mean_curve

_WIDTH, _HEIGHT = 64, 9
# A character has two columns of four dots; these are the bits in Unicode's Braille block.
_BLANK = 0x2800
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def terminal_curves(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], *, width: int) -> Group:
    metric, names = schemes[0].metric, [scheme.name for scheme in schemes]
    scale, digits = (100, 0) if metric.percent else (1, 2)
    curves = [scale * mean_curve([run for run in runs if run.scheme == name]) for name in names]
    columns = max(min(width - 10, _WIDTH), 20)
    known = np.concatenate([curve[np.isfinite(curve)] for curve in curves])
    if len(known) == 0:
        return Group()
    low, high = float(known.min()), float(known.max())
    letters, owners = _braille(curves, low, high if high > low else low + 1, columns)
    lines = []
    for row in range(_HEIGHT):
        label = {0: f"{high:.{digits}f}", _HEIGHT - 1: f"{low:.{digits}f}"}.get(row, "")
        line = Text(f"{label:>7} ┤" if label else " " * 8 + "│")
        for letter, owner in zip(letters[row], owners[row], strict=True):
            line.append(
                chr(letter) if letter > _BLANK else " ", look_of(names[owner], names).dark if owner >= 0 else ""
            )
        lines.append(line)
    last = f"{runs[0].scenario.rounds:,} rounds"
    lines.append(Text(" " * 8 + "└" + "─" * columns, "dim"))
    lines.append(Text(f"{' ' * 9}0{last:>{columns - 1}}", "dim"))
    # On a terminal without colours, the order of the final values identifies the lines.
    order = sorted(range(len(names)), key=lambda index: -curves[index][-1] if np.isfinite(curves[index][-1]) else 0)
    legend = Text(" " * 9)
    for index in order:
        legend.append("━ ", look_of(names[index], names).dark)
        legend.append(f"{scheme_label(names[index])}  ")
    words, unit = metric_words_and_unit(metric)
    return Group(Text(f"{words}{', ' + unit if unit else ''} over rounds", "bold"), *lines, legend)


def _braille(
    curves: Sequence[Floats], low: float, high: float, columns: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Characters, and the curve that drew last in each; the first curve is on top."""
    letters = np.full((_HEIGHT, columns), _BLANK)
    owners = np.full((_HEIGHT, columns), -1)
    across, down = 2 * columns, 4 * _HEIGHT
    for number in reversed(range(len(curves))):
        curve = curves[number]
        positions = np.linspace(0, len(curve) - 1, across)
        values = np.interp(positions, np.arange(len(curve)), curve)
        rows = np.where(np.isfinite(values), (high - values) / (high - low) * (down - 1), -1).round().astype(int)
        for column in range(across):
            if rows[column] < 0:
                continue
            before = rows[column - 1] if column and rows[column - 1] >= 0 else rows[column]
            # Fill the space between two neighbours, so that a steep curve has no gaps.
            for row in range(min(before, rows[column]), max(before, rows[column]) + 1):
                letters[row // 4, column // 2] |= int(_DOTS[row % 4, column % 2])
                owners[row // 4, column // 2] = number
    return letters.tolist(), owners.tolist()
