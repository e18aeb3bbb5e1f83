"""Figures of runs and comparisons, drawn with matplotlib (the extra `report`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from wayfare.files import writing
from wayfare.learning.tasks import Metric
from wayfare.records import RunRecord, SchemeSummary
from wayfare.report import canvas
from wayfare.report.labels import figure_label, metric_label, number_text
from wayfare.report.palette import colour_of, dashes_of
from wayfare.report.study_figures import study_figure
from wayfare.studies.results import StudyResults

Format: TypeAlias = Literal["pdf", "svg", "png"]
Groups: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The chart data of every scheme (``digest.group_json``)."""


def score_curves(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], file: Path) -> None:
    """Score against rounds, with a line per scheme and a band from the lowest to the highest seed."""
    metric = schemes[0].metric
    names = [scheme.name for scheme in schemes]
    with canvas.wide_figure(file, height_in=4.2) as figure:
        axes = figure.add_subplot()
        for scheme in schemes:
            mine = [run for run in runs if run.scheme == scheme.name]
            rounds = mine[0].evaluations["round"]
            score = metric.scale * np.array([run.evaluations["score"] for run in mine])
            look = _look(scheme.name, names, f" ({number_text(scheme.energy_joules_mean)} J)")
            axes.plot(rounds, score.mean(axis=0), lw=1.8, **look)
            axes.fill_between(rounds, score.min(axis=0), score.max(axis=0), color=look["color"], alpha=0.15, lw=0)
        axes.set_title(f"{runs[0].scenario.name}: budget {number_text(schemes[0].budget_joules)} J")
        _label_scores(axes, metric, "round")
        axes.legend(fontsize=9)


def write_figures(results: StudyResults, groups: Groups, folder: Path, kind: Format) -> list[Path]:
    """Write all figures of a comparison or a study, for one column of a journal."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if results.manifest.axes:
        names = list(dict.fromkeys(name for row in results.rows for name in row.estimates))
        for name in names:
            study_figure(results, name, folder / f"{name}.{kind}", column=True)
        return [folder / f"{name}.{kind}" for name in names]
    metric = results.results[0].metric
    drawings: dict[str, Callable[[Any, Groups], None]] = {
        f"{metric.name}-rounds": lambda axes, shown: _curves(axes, shown, metric, "round", 1.0, "round"),
        f"{metric.name}-energy": lambda axes, shown: _energy(axes, shown, metric, results.schemes[0].budget_joules),
        f"{metric.name}-bits": lambda axes, shown: _curves(axes, shown, metric, "bits", 1e-6, "transmitted (Mbit)"),
        "energy-devices": _shares,
        "queue": _queue,
        "kept": lambda axes, shown: _tails(axes, shown, "kept", "delivered at least (% of an update)"),
        "staleness": lambda axes, shown: _tails(axes, shown, "staleness", "staleness at least (rounds)", log=True),
    }
    for name, drawing in drawings.items():
        with canvas.column_figure(folder / f"{name}.{kind}") as figure:
            axes = figure.add_subplot()
            drawing(axes, groups)
            if name != "energy-devices" and len(axes.get_legend_handles_labels()[1]) > 1:
                canvas.legend_below(figure, axes)
    return [folder / f"{name}.{kind}" for name in drawings]


def _curves(axes: Any, groups: Groups, metric: Metric, across: str, factor: float, label: str) -> None:
    for scheme, group in groups.items():
        x, look = factor * _floats(group["curves"][across]["mean"]), _look(scheme, list(groups))
        mean, low, high = (metric.scale * _floats(group["curves"]["score"][edge]) for edge in ("mean", "low", "high"))
        axes.plot(x, mean, **look)
        if len(group["seeds"]) > 1:
            axes.fill_between(x, low, high, color=look["color"], alpha=0.13, lw=0)
    _label_scores(axes, metric, label)


def _label_scores(axes: Any, metric: Metric, across: str) -> None:
    axes.set(xlabel=across, ylabel=f"test {metric_label(metric)}")
    canvas.keep_within(axes, x=canvas.POSITIVE, y=canvas.PERCENT if metric.percent else (None, None))


def _energy(axes: Any, groups: Groups, metric: Metric, budget_joules: float) -> None:
    axes.axvline(budget_joules, label=canvas.BUDGET, **canvas.BUDGET_LINE)
    _curves(axes, groups, metric, "energy_joules", 1.0, "energy of all devices (J)")


def _shares(axes: Any, groups: Groups) -> None:
    names = list(groups)[::-1]
    for row, scheme in enumerate(names):
        shares = 100 * _floats(groups[scheme]["budget_shares"])
        # Spread the dots of a row deterministically, so that the figure is reproducible.
        spread = 0.28 * np.sin(2.4 * np.arange(len(shares)))
        axes.plot(shares, row + spread, ".", ms=4, alpha=0.6, mew=0, color=colour_of(scheme, list(groups)))
    axes.axvline(100, **canvas.BUDGET_LINE)
    axes.set_yticks(range(len(names)), [figure_label(name) for name in names])
    axes.set(xlim=(0, None), xlabel="energy of a device (% of its budget)")
    axes.grid(False, axis="y")


def _queue(axes: Any, groups: Groups) -> None:
    for scheme, group in groups.items():
        time_s, backlog = _floats(group["backlog"]["time_s"]), _floats(group["backlog"]["mean"])
        known = np.isfinite(backlog)
        axes.plot(time_s[known] / 3600, backlog[known], **_look(scheme, list(groups)))
    axes.set(xlabel="simulated time (h)", ylabel="mean backlog (J)")
    canvas.keep_within(axes, x=canvas.POSITIVE, y=canvas.POSITIVE)


def _tails(axes: Any, groups: Groups, name: str, label: str, *, log: bool = False) -> None:
    for scheme, group in groups.items():
        at_least, percent = _floats(group[name]["at_least"]), _floats(group[name]["percent"])
        axes.step(at_least, percent, where="pre", **_look(scheme, list(groups)))
    axes.set(xscale="log" if log else "linear", xlabel=label, ylabel="contacts (%)", ylim=(0, 102))
    canvas.keep_within(axes, x=canvas.POSITIVE)


def _look(scheme: str, names: Sequence[str], more: str = "") -> dict[str, Any]:
    label = figure_label(scheme) + more
    return {"color": colour_of(scheme, names), "ls": dashes_of(scheme, names), "label": label}


def _floats(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values])
