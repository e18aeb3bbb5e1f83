"""Draws the figures of the paper out of the runs of their studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wayfare.records import read_run
from wayfare.report.canvas import legend_beside, plain_axes, wide_figure
from wayfare.report.labels import axis_label, scheme_label, score_label, value_label
from wayfare.report.palette import colour_of, dashes_of
from wayfare.report.study_figures import study_figure
from wayfare.studies.paper import PaperFigure
from wayfare.studies.results import Row, StudyResults
from wayfare.studies.store import value_text

# Points of a grid, from few to many of what varies.
_SHADES = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#08519C", "#08306B")


def draw(figure: PaperFigure, results: StudyResults, file: Path) -> None:
    """The figure, from what its study has found so far."""
    if figure.drawing == "metric":
        study_figure(results, figure.metric, file, title=figure.title)
        return
    with wide_figure(file, width_in=7.6, height_in=4.2) as canvas:
        axes = canvas.add_subplot()
        axes.set_title(figure.title, loc="left", fontsize=10)
        plain_axes(axes)
        if figure.drawing == "curves":
            _curves(results, axes)
        else:
            _rounds_to_target(results, axes)
        if axes.get_legend_handles_labels()[0]:
            legend_beside(canvas, axes)
        else:
            axes.text(0.5, 0.5, "no run got there", transform=axes.transAxes, ha="center", color="#555555")


def _curves(results: StudyResults, axes: Any) -> None:
    """Score against rounds: a line for each point of the grid, or for each scheme where there is one point."""
    metric = results.metric
    scale = 100.0 if metric is not None and metric.percent else 1.0
    for row in results.rows:
        records = [read_run(result.folder) for result in row.results]
        score = scale * np.array([record.evaluations["score"] for record in records])
        colour, label, dashes = _line(results, row)
        rounds = records[0].evaluations["round"]
        axes.plot(rounds, score.mean(axis=0), color=colour, label=label, ls=dashes, lw=1.7)
        if len(records) > 1:
            axes.fill_between(rounds, score.min(axis=0), score.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("round")
    if metric is not None:
        axes.set_ylabel(score_label(metric))


def _line(results: StudyResults, row: Row) -> tuple[str, str, Any]:
    manifest = results.manifest
    if not manifest.axes:
        return (
            colour_of(row.scheme, manifest.schemes),
            scheme_label(row.scheme),
            dashes_of(row.scheme, manifest.schemes),
        )
    values = manifest.points[row.point]
    label = ", ".join(value_label(axis, value_text(values[axis])) for axis in manifest.axes)
    return _SHADES[row.point % len(_SHADES)], label, "-"


def _rounds_to_target(results: StudyResults, axes: Any) -> None:
    """Rounds to each target against what varies; a point that never gets there is left out."""
    manifest, axis = results.manifest, results.manifest.axes[0]
    places = [manifest.points[row.point][axis] for row in results.rows]
    for number, target in enumerate(manifest.targets):
        medians = [row.rounds_to[number].median for row in results.rows]
        known = [(place, value) for place, value in zip(places, medians, strict=True) if value is not None]
        if known:
            axes.plot(
                *zip(*known, strict=True), marker="o", ms=4, lw=1.6, color=_SHADES[2 + number], label=f"{target:.0%}"
            )
    axes.set_xscale("log")
    axes.set_xticks(places, [value_text(place) for place in places])
    axes.minorticks_off()
    axes.set_xlabel(axis_label(axis))
    axes.set_ylabel("rounds to the target")
