"""Figures of a study: metrics against the varied setting, with a line per scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from wayfare.records.statistics import Estimate
from wayfare.report import canvas
from wayfare.report.labels import axis_label, figure_label, metric_label
from wayfare.report.palette import colour_of, dashes_of, height_of, mark_of
from wayfare.studies.results import Row, StudyResults
from wayfare.studies.store import value_text

# Values that span more than this factor get a logarithmic axis.
_WIDE = 8
# Points with longer names are listed from top to bottom, where there is space for the names.
_LONG = 12
# The axis spans at least this many percentage points, so that small differences do not look large.
_LEAST_POINTS = 5.0
# Height of a scheme at such a point in inches, and of everything around.
_NAMED_IN, _AROUND_IN = 0.075, 1.2
# Distance between the schemes of a point: a share of the axis, or of the space between two named points. All schemes
# together take at most the last share of the space between two values, so that points stay near their ticks.
_BESIDE, _NAMED_BESIDE, _BESIDE_ALL = 0.012, 0.5, 0.2
_NEVER_NEGATIVE = (
    *("energy_joules", "budget_joules", "bits", "wall_s", "staleness_rounds"),
    *("uploads_per_device", "failed_uploads_per_device", "epsilon"),
)
# The 95 % interval of two seeds is 12.7 times as wide as the two are apart: it would hide what the figure shows.
_TWO = 2


def study_figure(results: StudyResults, metric_name: str, file: Path, *, column: bool = False, title: str = "") -> None:
    """Draw a metric against the first varied field, with a panel for each combination of the others.

    Panels are side by side, or in a journal's column from top to bottom and without a title. Energy has a line at the
    budget.
    """
    panels = panels_of(results)
    names = _long_names(results)
    named_in = _NAMED_IN * len(names) * (len(results.manifest.schemes) + 1) + _AROUND_IN if names else 0.0
    if column:
        with canvas.column_figure(file, height_in=max(named_in, 1.7) * len(panels) + 0.7) as figure:
            axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
            _draw_panels(results, metric_name, panels, axes)
            canvas.headline(figure, seeds_words(results, _drawn(results)))
            for panel in axes[:-1]:
                panel.set_xlabel("")
            canvas.legend_below(figure, axes[-1])
        return
    width_in = min(4.6 * len(panels) + 1.5, 16) if len(panels) > 1 else 7.6
    with canvas.wide_figure(file, width_in=width_in, height_in=max(named_in, 4.0)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        _draw_panels(results, metric_name, panels, axes)
        canvas.headline(figure, title, seeds_words(results, _drawn(results)))
        canvas.legend_beside(figure, axes[0])
        for panel in axes[1:]:
            panel.set_ylabel("")


def seeds_words(results: StudyResults, drawn: str) -> str:
    return "one seed alone is not a result" if results.seeds == 1 else f"{results.seeds} seeds: {drawn}"


def _drawn(results: StudyResults) -> str:
    return "mean, lowest to highest" if results.seeds == _TWO else "mean and 95 % interval"


def _draw_panels(results: StudyResults, metric_name: str, panels: dict[str, list[Row]], axes: Any) -> None:
    names = _long_names(results)
    for panel, (title, rows) in zip(axes, panels.items(), strict=True):
        panel.set_title(title, fontsize="medium")
        if names:
            _draw_named(results, metric_name, rows, names, panel)
            panel.set_xlabel(_label(results, metric_name))
        else:
            _draw(results, metric_name, rows, panel)
            panel.set_ylabel(_label(results, metric_name))
    # Set limits after drawing all panels, because panels may share an axis.
    bounds = _bounds(results, metric_name)
    for panel in axes:
        if names:
            canvas.keep_within(panel, x=bounds)
            continue
        if metric_name == "score" and _percent(results, metric_name):
            low, high = panel.get_ylim()
            beyond = max(_LEAST_POINTS - (high - low), 0.0) / 2
            panel.set_ylim(low - beyond, high + beyond)
        canvas.keep_within(panel, y=bounds)


def panels_of(results: StudyResults) -> dict[str, list[Row]]:
    """Rows by the values of all varied fields except the first, and except fields that always change with it."""
    manifest, panels = results.manifest, dict[str, list[Row]]()
    others = [axis for axis in manifest.varies[1:] if not _follows(results, axis)]
    for row in results.rows:
        panels.setdefault(manifest.point_name(row.point, others), []).append(row)
    return panels


def _follows(results: StudyResults, axis: str) -> bool:
    manifest, seen = results.manifest, dict[str, str]()
    places = [manifest.place_of(point) for point in range(len(manifest.points))]
    return all(
        seen.setdefault(value_text(values[manifest.varies[0]]), value_text(values[axis])) == value_text(values[axis])
        for values in places
    )


def _long_names(results: StudyResults) -> list[str]:
    """The values of the first varied field, if they are long names."""
    manifest = results.manifest
    if not manifest.varies:
        return []
    values = [manifest.place_of(point)[manifest.varies[0]] for point in range(len(manifest.points))]
    names = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    return names if names and max(map(len, names)) > _LONG else []


def _draw_named(results: StudyResults, metric_name: str, rows: list[Row], names: list[str], panel: Any) -> None:
    """Draw points from top to bottom, with the schemes of each point below each other."""
    manifest, scale = results.manifest, 100.0 if _percent(results, metric_name) else 1.0
    step = 1.0 / (len(manifest.schemes) + 1)
    for number, scheme in enumerate(manifest.schemes, start=1):
        mine = [row for row in rows if row.scheme == scheme and metric_name in row.estimates]
        found = [row.estimates[metric_name] for row in mine]
        panel.errorbar(
            [scale * one.mean for one in found],
            [names.index(manifest.place_of(row.point)[manifest.varies[0]]) + number * step for row in mine],
            xerr=interval_bars(scale, found, seeds=results.seeds),
            color=colour_of(scheme, manifest.schemes),
            **mark_of(scheme, manifest.schemes),
            ls="none",
            ms=4,
            lw=1.0,
            label=figure_label(scheme),
        )
    if metric_name == "energy_joules":
        budgets = {names.index(manifest.place_of(row.point)[manifest.varies[0]]): _budget_joules(row) for row in rows}
        for place, budget in budgets.items():
            panel.plot(
                [budget, budget], [place, place + 1], label=canvas.BUDGET if place == 0 else None, **canvas.BUDGET_LINE
            )
    panel.set_yticks([place + 0.5 for place in range(len(names))], names)
    panel.set_ylim(len(names), 0)
    for place in range(1, len(names)):
        panel.axhline(place, color="#CCCCCC", lw=0.6)
    panel.tick_params(axis="y", length=0)
    panel.grid(False, axis="y")
    panel.spines["left"].set_visible(False)


def _draw(results: StudyResults, metric_name: str, rows: list[Row], panel: Any) -> None:
    manifest = results.manifest
    axis = manifest.varies[0] if manifest.varies else None
    values = [manifest.place_of(row.point)[axis] if axis else "" for row in rows]
    numeric = axis is not None and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    labels = list(dict.fromkeys(value_text(value) for value in values))
    scale = 100.0 if _percent(results, metric_name) else 1.0
    ordered: list[Any] = sorted(set(values)) if numeric else []
    logarithmic = bool(ordered) and ordered[0] > 0 and ordered[-1] / ordered[0] >= _WIDE
    on_axis = [log(value) for value in ordered] if logarithmic else ordered
    apart = distance_apart(on_axis, len(manifest.schemes)) if numeric else _NAMED_BESIDE / len(manifest.schemes)
    for number, scheme in enumerate(manifest.schemes):
        # Shift schemes sideways, so that bars with equal values do not hide each other.
        beside = number - (len(manifest.schemes) - 1) / 2
        mine = [(row, value) for row, value in zip(rows, values, strict=True) if row.scheme == scheme]
        found = [(row.estimates[metric_name], value) for row, value in mine if metric_name in row.estimates]
        if not found:
            continue
        places: list[Any] = [value if numeric else labels.index(value_text(value)) for _, value in found]
        if logarithmic:
            places = [place * exp(apart * beside) for place in places]
        else:
            places = [place + apart * beside for place in places]
        panel.errorbar(
            places,
            [scale * one.mean for one, _ in found],
            yerr=interval_bars(scale, [one for one, _ in found], seeds=results.seeds),
            color=colour_of(scheme, manifest.schemes),
            ls=dashes_of(scheme, manifest.schemes) if numeric else "none",
            zorder=height_of(scheme, manifest.schemes),
            **mark_of(scheme, manifest.schemes),
            ms=4,
            lw=1.6,
            capsize=3,
            label=figure_label(scheme),
        )
    if metric_name == "energy_joules":
        where: list[Any] = [value if numeric else labels.index(value_text(value)) for value in values]
        _draw_budget({place: _budget_joules(row) for place, row in zip(where, rows, strict=True)}, panel)
    if logarithmic:
        panel.set_xscale("log")
        panel.set_xticks(ordered, [value_text(value) for value in ordered])
        panel.minorticks_off()
    elif not numeric:
        panel.set_xticks(range(len(labels)), labels)
    panel.set_xlabel(axis_label(axis) if axis else "")


def distance_apart(ordered: Sequence[float], schemes: int) -> float:
    """The distance between two schemes at one value: small beside the distance to the next value."""
    if len(ordered) < 2:
        return 0.0
    nearest = min(after - before for before, after in pairwise(ordered))
    return min(_BESIDE * (ordered[-1] - ordered[0]), _BESIDE_ALL * nearest / schemes)


def _draw_budget(budgets: Mapping[float, float], panel: Any) -> None:
    """A line at the budget across the panel, or from point to point if it varies."""
    if len(set(budgets.values())) == 1:
        panel.axhline(next(iter(budgets.values())), label=canvas.BUDGET, **canvas.BUDGET_LINE)
    else:
        places = sorted(budgets)
        panel.plot(places, [budgets[place] for place in places], label=canvas.BUDGET, **canvas.BUDGET_LINE)


def _budget_joules(row: Row) -> float:
    return fmean(result.summary.budget_joules for result in row.results)


def _bounds(results: StudyResults, metric_name: str) -> canvas.Bounds:
    """The possible range of a metric; a score that is not a share has none."""
    if _percent(results, metric_name):
        return canvas.PERCENT
    return canvas.POSITIVE if metric_name in _NEVER_NEGATIVE else (None, None)


def interval_bars(scale: float, estimates: list[Estimate], *, seeds: int) -> list[float] | None:
    """Half the 95 % interval of each mean, or half the distance of two seeds, which is sd / sqrt(2)."""
    halves = [one.sd and one.sd / sqrt(2) if seeds == _TWO else one.ci95 for one in estimates]
    return [scale * (half or 0.0) for half in halves] if any(half is not None for half in halves) else None


def _percent(results: StudyResults, metric_name: str) -> bool:
    metric = results.metric
    return metric_name == "kept_fraction" or (metric_name == "score" and metric is not None and metric.percent)


def _label(results: StudyResults, metric_name: str) -> str:
    if metric_name == "score" and results.metric is not None:
        return metric_label(results.metric)
    return "kept share of an update (%)" if metric_name == "kept_fraction" else axis_label(metric_name)
