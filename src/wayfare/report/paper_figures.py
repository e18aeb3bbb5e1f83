"""Draws the figures of the paper from the runs of their studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from wayfare.arrays import Floats
from wayfare.records import read_run
from wayfare.report.canvas import PERCENT, headline, keep_within, legend_beside, wide_figure
from wayfare.report.labels import axis_label, figure_label, metric_label, value_label
from wayfare.report.palette import colour_of, dashes_of, height_of
from wayfare.report.study_figures import seeds_words, study_figure
from wayfare.studies.paper import PaperFigure
from wayfare.studies.results import Row, RunResult, StudyResults
from wayfare.studies.store import value_text

Curve: TypeAlias = tuple[Floats, Floats]
"""Rounds and scores of a run."""

# Points of a grid, in the order of the varied setting.
_SHADES = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#08519C", "#08306B")
# Dashes distinguish schemes if shades are points, and targets if colours are schemes.
_DASHES = ("-", "--", ":", "-.")
# More bands than this hide the lines; then bars to the right of the curves show the range of the seeds.
_MOST_BANDS = 6
# Distance of the first bar from the last round, and between bars, as shares of the rounds.
_FIRST_BAR, _BAR_STEP = 0.03, 0.016


def _recorded_curve(result: RunResult) -> Curve:
    evaluations = read_run(result.folder).evaluations
    return evaluations["round"], evaluations["score"]


def draw(
    figure: PaperFigure,
    results: StudyResults,
    file: Path,
    *,
    quick: bool = False,
    curve_of: Callable[[RunResult], Curve] = _recorded_curve,
) -> None:
    """Draw a figure from the finished runs of its study; the title of a quick one says so."""
    if figure.drawing == "metric":
        study_figure(results, figure.metric, file, title=_titled(figure, quick))
        return
    with wide_figure(file, width_in=7.6, height_in=4.2) as canvas:
        axes = canvas.add_subplot()
        if figure.drawing == "curves":
            _curves(results, axes, curve_of)
            banded = len(results.rows) <= _MOST_BANDS
            drawn = "mean, lowest to highest" if banded else "mean, bars from lowest to highest score"
        else:
            _rounds_to_target(results, axes)
            drawn = "median"
        headline(canvas, _titled(figure, quick), seeds_words(results, drawn))
        legend_beside(canvas, axes)


def _titled(figure: PaperFigure, quick: bool) -> str:
    return f"{figure.title}\n{figure.stand_in}" if quick else figure.title


def _curves(results: StudyResults, axes: Any, curve_of: Callable[[RunResult], Curve]) -> None:
    """Score against rounds, with a line per point of the grid, or per scheme if there is one point."""
    metric = results.metric
    scale = 1.0 if metric is None else metric.scale
    banded = len(results.rows) <= _MOST_BANDS
    for index, row in enumerate(results.rows):
        found = [curve_of(result) for result in row.results]
        score = scale * np.array([scores for _, scores in found])
        colour, label, dashes = _line(results, row)
        rounds = found[0][0]
        height = height_of(row.scheme, results.manifest.schemes)
        axes.plot(rounds, score.mean(axis=0), color=colour, label=label, ls=dashes, lw=1.7, zorder=height)
        if len(found) > 1 and banded:
            axes.fill_between(rounds, score.min(axis=0), score.max(axis=0), color=colour, alpha=0.15, lw=0)
        elif len(found) > 1:
            final = [scale * result.summary.score for result in row.results]
            behind = rounds[-1] * (1 + _FIRST_BAR + _BAR_STEP * index)
            axes.plot([behind, behind], [min(final), max(final)], color=colour, lw=1.7)
            axes.plot(behind, fmean(final), marker="o", ms=4, color=colour, mfc=colour if dashes == "-" else "white")
    axes.set_xlabel("round")
    if metric is not None:
        axes.set_ylabel(f"test {metric_label(metric)}")
        keep_within(axes, y=PERCENT if metric.percent else (None, None))


def _line(results: StudyResults, row: Row) -> tuple[str, str, Any]:
    manifest = results.manifest
    if not manifest.axes:
        colour, dashes = colour_of(row.scheme, manifest.schemes), dashes_of(row.scheme, manifest.schemes)
        return colour, figure_label(row.scheme), dashes
    values = manifest.points[row.point]
    label = ", ".join(value_label(axis, value_text(values[axis])) for axis in manifest.axes)
    if len(manifest.schemes) > 1:
        label = f"{figure_label(row.scheme)}, {label}"
    return _SHADES[row.point % len(_SHADES)], label, _DASHES[manifest.schemes.index(row.scheme) % len(_DASHES)]


def _rounds_to_target(results: StudyResults, axes: Any) -> None:
    """Rounds to each target against the varied setting; a point that misses the target is marked at the end."""
    manifest, axis = results.manifest, results.manifest.axes[0]
    end, beyond = max(result.rounds for result in results.results), False
    for index, scheme in enumerate(manifest.schemes):
        rows = [row for row in results.rows if row.scheme == scheme]
        for number, target in enumerate(manifest.targets):
            found = [(manifest.points[row.point][axis], row.rounds_to[number].median) for row in rows]
            known = [(value, rounds) for value, rounds in found if rounds is not None]
            never = [value for value, rounds in found if rounds is None]
            label = f"{target:.0%}" if len(manifest.schemes) == 1 else f"{figure_label(scheme)}, {target:.0%}"
            colour, dashes, width = _SHADES[2 + number], "-", 1.6
            if len(manifest.schemes) > 1:
                # Lines of schemes with equal rounds coincide, so earlier schemes have wider lines.
                colour, dashes = colour_of(scheme, manifest.schemes), _DASHES[number % len(_DASHES)]
                width += 1.1 * (len(manifest.schemes) - 1 - index)
            places, heights = zip(*known, strict=True) if known else ((), ())
            axes.plot(places, heights, marker="o", ms=3 + width, lw=width, ls=dashes, color=colour, label=label)
            axes.plot(never, [end] * len(never), marker="^", ms=5 + width, ls="none", color=colour, mfc="white")
            beyond = beyond or bool(never)
    if beyond:
        axes.plot([], [], marker="^", ms=6, ls="none", color="#555555", mfc="white", label=f"not in {end:,} rounds")
    values = [point[axis] for point in manifest.points]
    axes.set(xscale="log", ylim=(0, None), xlabel=axis_label(axis), ylabel="rounds to the target")
    axes.set_xticks(values, [value_text(value) for value in values])
    axes.minorticks_off()
