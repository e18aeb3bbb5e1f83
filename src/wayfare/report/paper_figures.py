"""Draws the figures of the paper out of the runs of their studies."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from wayfare.control.budgets import draw_budgets
from wayfare.records import read_run
from wayfare.report.canvas import headline, legend_beside, plain_axes, wide_figure
from wayfare.report.labels import axis_label, scheme_label, score_label, value_label
from wayfare.report.palette import colour_of, dashes_of
from wayfare.report.study_figures import seeds_words, study_figure
from wayfare.studies.paper import PaperFigure
from wayfare.studies.results import Row, StudyResults
from wayfare.studies.store import value_text

# Points of a grid, from few to many of what varies.
_SHADES = ("#9ECAE1", "#6BAED6", "#4292C6", "#2171B5", "#08519C", "#08306B")
# Schemes, where shades are targets.
_DASHES = ("-", "--", ":", "-.")


def draw(figure: PaperFigure, results: StudyResults, file: Path) -> None:
    """The figure, from what its study has found so far."""
    if figure.drawing == "metric":
        levels = {"budget": _budget_joules(results)} if figure.metric == "energy_joules" else {}
        study_figure(results, figure.metric, file, title=figure.title, levels=levels)
        return
    with wide_figure(file, width_in=7.6, height_in=4.2) as canvas:
        axes = canvas.add_subplot()
        plain_axes(axes)
        if figure.drawing == "curves":
            _curves(results, axes)
            drawn = "mean, lowest to highest"
        else:
            _rounds_to_target(results, axes)
            drawn = "median"
        headline(canvas, figure.title, seeds_words(results, drawn))
        if axes.get_legend_handles_labels()[0]:
            legend_beside(canvas, axes)
        else:
            axes.text(0.5, 0.5, "no run got there", transform=axes.transAxes, ha="center", color="#555555")


def _budget_joules(results: StudyResults) -> float:
    """What the fleet may spend, a mean over the seeds."""
    records = [read_run(result.folder) for result in results.results]
    by_seed = {record.seed: float(draw_budgets(record.scenario.fleet, record.seed).sum()) for record in records}
    return fmean(by_seed.values())


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
    for place, scheme in enumerate(manifest.schemes):
        rows = [row for row in results.rows if row.scheme == scheme]
        for number, target in enumerate(manifest.targets):
            found = [(manifest.points[row.point][axis], row.rounds_to[number].median) for row in rows]
            known = [(value, rounds) for value, rounds in found if rounds is not None]
            if not known:
                continue
            label = f"{target:.0%}" if len(manifest.schemes) == 1 else f"{scheme_label(scheme)}, {target:.0%}"
            dashes = _DASHES[place % len(_DASHES)]
            colour = _SHADES[2 + number]
            axes.plot(*zip(*known, strict=True), marker="o", ms=4, lw=1.6, ls=dashes, color=colour, label=label)
    values = [point[axis] for point in manifest.points]
    axes.set_xscale("log")
    axes.set_xticks(values, [value_text(value) for value in values])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(axis_label(axis))
    axes.set_ylabel("rounds to the target")
