"""Tables and small curves for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from wayfare.arrays import Floats
from wayfare.learning.tasks import Metric
from wayfare.records import RunRecord, SchemeSummary, final_evaluations, paired_difference, summarise_run
from wayfare.report.labels import ASSUMED, metric_heading, metric_words_and_unit

# Energy counts as over budget from here on: a controller steers by a queue, not by a wall.
OVER_BUDGET = 1.03

_BARS = "▁▂▃▄▅▆▇█"
_SHORTEST_CURVE, _LONGEST_CURVE = 10, 40
_TABLE_WIDTH = 80
_NAME_WIDTH = 14


def comparison_table(
    schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], *, width: int = _TABLE_WIDTH
) -> Group:
    """Score, energy against budget and how much of each update got through, for every scheme."""
    metric, reference = schemes[0].metric, _reference(schemes)
    by_scheme = {scheme.name: [run for run in runs if run.scheme == scheme.name] for scheme in schemes}
    curve_width = min(width - _TABLE_WIDTH - 1, _LONGEST_CURVE)
    with_curve, with_pairs = curve_width >= _SHORTEST_CURVE, len(schemes) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
    for heading, column_width, shown in (
        ("scheme", _NAME_WIDTH, True),
        ("energy\nrule", 9, True),
        (metric_heading(metric), 11, True),
        (f"{metric_words_and_unit(metric)[0]}\nover rounds", 0, with_curve),
        (f"difference\nto {reference}", 12, with_pairs),
        ("energy\nJ", 6, True),
        ("kept\n%", 4, True),
        ("uploads\n/device", 7, True),
        ("failed", 6, True),
        ("age", 3, True),
    ):
        if shown:
            left = "over rounds" in heading or heading in ("scheme", "energy\nrule")
            table.add_column(heading, justify="left" if left else "right", min_width=column_width, no_wrap=True)
    scores = [scheme.score_mean for scheme in schemes if np.isfinite(scheme.score_mean)]
    best = (max if metric.better == "higher" else min)(scores, default=np.nan)
    every = np.concatenate([run.evaluations["score"] for run in runs])
    top = 1.0 if metric.percent else float(every[np.isfinite(every)].max(initial=0.0)) or 1.0
    for scheme in schemes:
        over = scheme.energy_joules_mean > OVER_BUDGET * scheme.budget_joules
        cells: list[Text | str] = [
            Text(_short_name(scheme), "bold"),
            scheme.energy_rule,
            Text(_interval(metric, scheme.score_mean, scheme.score_ci95), "bold" if scheme.score_mean == best else ""),
        ]
        if with_curve:
            cells.append(sparkline(mean_curve(by_scheme[scheme.name]) / top, curve_width))
        if with_pairs:
            cells.append(_difference(metric, by_scheme[scheme.name], by_scheme[reference]))
        table.add_row(
            *cells,
            Text(f"{scheme.energy_joules_mean:,.0f}{'!' if over else ''}", "red" if over else ""),
            f"{100 * scheme.kept_fraction_mean:.0f}",
            f"{scheme.uploads_per_device:.1f}",
            f"{scheme.failed_uploads_per_device:.1f}",
            f"{scheme.staleness_rounds_mean:.0f}",
        )
    return Group(Text(_title(schemes, runs), "bold"), Text(), table, Text(), Text(_notes(schemes, runs), "dim"))


def mean_curve(runs: Sequence[RunRecord]) -> Floats:
    """The score of every evaluation, the mean over runs."""
    return np.asarray(np.mean([run.evaluations["score"] for run in runs], axis=0))


def sparkline(values: Floats, width: int) -> str:
    """A curve of values between 0 and 1 in one line of text."""
    places = np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)
    shown = values[places]
    heights = np.clip(np.nan_to_num(shown) * len(_BARS), 0, len(_BARS) - 1).astype(int)
    # Where there was no number there is no bar.
    return "".join(_BARS[height] if known else " " for height, known in zip(heights, np.isfinite(shown), strict=True))


def _reference(schemes: Sequence[SchemeSummary]) -> str:
    """The scheme the others are set against: MADS where it is there, else the first."""
    names = [scheme.name for scheme in schemes]
    return "mads" if "mads" in names else names[0]


def _short_name(scheme: SchemeSummary) -> str:
    """A name that does not fit leaves its energy rule to the column of rules."""
    return scheme.name if len(scheme.name) <= _NAME_WIDTH else scheme.name.removesuffix(f":{scheme.energy_rule}")


def _interval(metric: Metric, value: float, half_width: float | None, sign: str = "") -> str:
    """A value and its interval, in the unit of the metric."""
    # Beside an interval there is no room for a third digit, and seldom a meaning.
    scale, digits = (100, 1) if metric.percent else (1, 3 if half_width is None else 2)
    interval = "" if half_width is None else f" ± {scale * half_width:.{digits}f}"
    return f"{scale * value:{sign}.{digits}f}{interval}"


def _difference(metric: Metric, runs: Sequence[RunRecord], reference: Sequence[RunRecord]) -> str:
    mine, theirs = [summarise_run(run) for run in runs], [summarise_run(run) for run in reference]
    if mine[0].scheme == theirs[0].scheme or not {run.seed for run in mine} & {run.seed for run in theirs}:
        return ""
    found = paired_difference(mine, theirs)
    return _interval(metric, found.mean, found.ci95, sign="+")


def _title(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> str:
    scenario = runs[0].scenario
    fewest, most = min(scheme.seeds for scheme in schemes), max(scheme.seeds for scheme in schemes)
    seeds = f"{fewest} to {most}" if fewest < most else f"{most}"
    return (
        f"{scenario.name}: {scenario.fleet.devices} devices, {scenario.rounds:,} rounds, "
        f"energy budget {schemes[0].budget_joules:,.0f} J, {seeds} seed{'s' if most > 1 else ''}"
    )


def _notes(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> str:
    """What the columns mean, for one who sees them for the first time."""
    last = final_evaluations(runs[0])
    several = max(scheme.seeds for scheme in schemes) > 1
    name = metric_words_and_unit(schemes[0].metric)[0]
    lines = [
        f"{name:10} on test data, mean of the last {last} evaluations" + (" and of the seeds" if several else ""),
        "energy     spent on transmitting, all devices; !: over budget by more than 3 %",
        "kept       share of an update delivered in a contact; the rest is offered again",
        "failed     uploads per device that a contact cut short: energy for nothing",
        "age        rounds since a device received its model, when it meets the server",
        f"assumed    {ASSUMED}",
    ]
    lines += [
        f"relays     {scheme.name}, per device: {scheme.relayed_per_device:.1f} updates handed on, "
        f"{scheme.delivered_per_device:.1f} delivered,\n"
        f"           {scheme.models_taken_per_device:.1f} newer models taken, "
        f"{scheme.failed_relays_per_device:.1f} attempts for nothing"
        for scheme in schemes
        if scheme.relayed_per_device or scheme.models_taken_per_device or scheme.failed_relays_per_device
    ]
    spread = "±          95 % interval; differences are paired: same seed, same world"
    lines.insert(1, spread if several else "seed       one alone is not a result")
    if mixed := sorted({run.seed for run in runs} - _same_worlds(runs)):
        listed = ", ".join(map(str, mixed))
        lines.append(
            f"worlds     of seed {listed} differ: a trace, data or the code changed between runs. Run them again"
        )
    if len({scheme.seeds for scheme in schemes}) > 1:
        counts = ", ".join(f"{scheme.name} {scheme.seeds}" for scheme in schemes)
        lines.append(
            f"uneven     not all have all the seeds: {counts}\n           only differences are over the same ones"
        )
    return "\n".join(lines)


def _same_worlds(runs: Sequence[RunRecord]) -> set[int]:
    """The seeds of which all runs met the same contacts, channels, budgets and data."""
    worlds: dict[int, list[dict[str, str]]] = {}
    for run in runs:
        worlds.setdefault(run.seed, []).append(run.meta.get("world", {}))
    # Schemes that relay also say which devices met each other.
    return {seed for seed, met in worlds.items() if all(one | other == other | one for one in met for other in met)}
