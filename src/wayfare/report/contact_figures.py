"""Figures of contacts: a timeline, distributions with their exponential fit, and times against speed (Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.contacts import ContactPlan
from wayfare.contacts.speeds import SpeedPoint
from wayfare.contacts.statistics import Distribution, PlanStatistics
from wayfare.errors import InputError
from wayfare.report.canvas import panels_figure

_BLUE, _ORANGE, _GREY = "#2b6cb0", "#dd6b20", "#718096"
# The Okabe-Ito colours, which colour-blind readers can distinguish.
_CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = "osD^vPX"
_ROWS_SHOWN = 60


def plot_contacts(
    plan: ContactPlan, statistics: PlanStatistics, file: Path | str, *, title: str, names: Sequence[str] = ()
) -> None:
    edges = {"left": 0.085, "right": 0.975, "top": 0.905, "bottom": 0.075}
    with panels_figure(file, (11.0, 7.5), title, **edges) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1.0), hspace=0.42, wspace=0.2)
        _timeline(figure.add_subplot(grid[0, :]), plan, names)
        _survival(figure.add_subplot(grid[1, 0]), statistics.contact, "Contact time")
        _survival(figure.add_subplot(grid[1, 1]), statistics.inter_contact, "Inter-contact time")


def plot_speeds(points: Sequence[SpeedPoint], file: Path | str, *, title: str) -> None:
    _reject_empty(points, file)
    times = {"Contact time": "contact_s", "Inter-contact time": "inter_contact_s"}
    models = list(dict.fromkeys(point.model for point in points))
    with panels_figure(file, (11.0, 4.8), title, left=0.07, right=0.98, top=0.84, bottom=0.13, wspace=0.2) as figure:
        for axes, (name, attribute) in zip(figure.subplots(1, 2), times.items(), strict=True):
            for index, model in enumerate(models):
                line = [point for point in points if point.model == model and getattr(point, attribute) is not None]
                axes.plot(
                    [point.speed_mps for point in line],
                    [getattr(point, attribute) for point in line],
                    marker=_MARKERS[index % len(_MARKERS)],
                    color=_CYCLE[index % len(_CYCLE)],
                    markersize=5,
                    linewidth=1.4,
                    label=model,
                )
            _law(axes, points, attribute)
            axes.set(xscale="log", yscale="log", xlabel="Speed [m/s]", ylabel="Mean [s]", title=name)
            axes.set_xticks(sorted({point.speed_mps for point in points}))
            if points:
                axes.legend()


def _reject_empty(points: Sequence[SpeedPoint], file: Path | str) -> None:
    """Raise InputError without any time, which a logarithmic axis cannot show."""
    for attribute, what in (("contact_s", "contact"), ("inter_contact_s", "time between two contacts")):
        if points and all(getattr(point, attribute) is None for point in points):
            speeds = ", ".join(f"{speed_mps:g}" for speed_mps in sorted({point.speed_mps for point in points}))
            raise InputError(
                f"{file}: nothing to draw, because there was no complete {what} at {speeds} m/s; use more devices, a "
                "smaller area or a larger radio.range_m"
            )


def _timeline(axes: Any, plan: ContactPlan, names: Sequence[str]) -> None:
    """One row per device; only the devices with most contacts if there are too many for a page."""
    served = plan.with_server()
    counts = np.bincount(served.device, minlength=plan.devices)
    shown = np.sort(np.argsort(-counts, kind="stable")[:_ROWS_SHOWN])
    unit_s, unit = _unit(plan.duration_s)
    for row, device in enumerate(shown):
        mine = served.take(served.device == device)
        spans = np.column_stack([mine.start_s, mine.end_s - mine.start_s]) / unit_s
        # The edge keeps a contact of seconds visible in a plan of hours.
        axes.broken_barh(spans, (row - 0.36, 0.72), facecolor=_BLUE, edgecolor=_BLUE, linewidth=0.5)
    left_out = plan.devices - len(shown)
    note = f", the {len(shown)} of {plan.devices} devices with most contacts" if left_out else ""
    axes.set(title=f"{len(served):,} contacts with the server{note}", xlabel=f"Time [{unit}]", ylabel="Device")
    axes.set(xlim=(0, plan.duration_s / unit_s), ylim=(len(shown) - 0.4, -0.6))
    every = max(1, -(-len(shown) // 24))
    axes.set_yticks(np.arange(0, len(shown), every))
    axes.set_yticklabels([_short(names[device]) if names else str(device) for device in shown[::every]], fontsize=7)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


def _survival(axes: Any, times: Distribution, name: str) -> None:
    """Share of times longer than t on a logarithmic axis, where the exponential model is a straight line."""
    axes.set_title(name)
    if times.fit is None:
        axes.text(0.5, 0.5, "none is complete within the plan", ha="center", va="center", color=_GREY)
        axes.set_axis_off()
        return
    unit_s, unit = _unit(float(times.times_s[-1]))
    count = len(times.times_s)
    # A share (n - k + 1) / n is longer than a time just before the k-th of n sorted times.
    share = 1.0 - np.arange(count) / count
    axes.step(np.append(0, times.times_s) / unit_s, np.append(1.0, share), where="pre", color=_BLUE, linewidth=1.8)
    reach_s = np.linspace(0, min(float(times.times_s[-1]), times.fit.mean_s * np.log(count * 3.0)), 200)
    axes.plot(reach_s / unit_s, np.exp(-reach_s / times.fit.mean_s), color=_ORANGE, linestyle="--", linewidth=1.6)
    axes.set(yscale="log", ylim=(0.5 / count, 1.3), xlim=(0, None), xlabel=f"t [{unit}]", ylabel="Share longer than t")
    axes.legend(
        [f"{count:,} times", f"exponential, mean {_seconds(times.fit.mean_s)}"],
        loc="upper right",
        title=f"KS distance {times.fit.ks_distance:.3f}",
        title_fontsize=9,
        alignment="left",
    )


def _law(axes: Any, points: Sequence[SpeedPoint], attribute: str) -> None:
    """A dotted line of slope -1 through the middle of all points."""
    found = [(point.speed_mps, getattr(point, attribute)) for point in points if getattr(point, attribute)]
    if not found:
        return
    speed_mps = np.array(sorted({speed for speed, _ in found}))
    middle_m = float(np.exp(np.median([np.log(speed * time_s) for speed, time_s in found])))
    axes.plot(speed_mps, middle_m / speed_mps, color=_GREY, linestyle=":", linewidth=1.6, label="1 / speed")


def _unit(span_s: float) -> tuple[float, str]:
    if span_s >= 2 * 86_400:
        return 86_400.0, "days"
    if span_s >= 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if span_s >= 600 else (1.0, "s")


def _seconds(time_s: float) -> str:
    unit_s, unit = _unit(time_s)
    return f"{time_s / unit_s:.3g} {unit}"


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"
