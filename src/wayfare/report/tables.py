"""Tables and small curves for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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
# Headings of columns that a narrow window does without, the first one first.
_LEAVES_FIRST = ("age", "failed", "uploads\n/device", "kept\n%", "energy\nrule", "energy\nJ")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column with all its cells, so that its width is known before a table is made."""

    heading: str
    cells: list[Text]
    left: bool = False

    @property
    def width(self) -> int:
        """Of its longest line."""
        return max(
            len(line) for text in (self.heading, *(cell.plain for cell in self.cells)) for line in text.split("\n")
        )


def comparison_table(
    schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], *, width: int = _TABLE_WIDTH
) -> Group:
    """Score, energy against budget and how much of each update got through, for every scheme.

    Neither a number nor a name is ever cut: where a window is too narrow, whole columns are left out, and a note says
    which.
    """
    columns, left_out = _columns(schemes, runs), []
    for heading in _LEAVES_FIRST:
        if _width(columns) <= width:
            break
        left_out.append(heading.replace("\n", " "))
        columns = [column for column in columns if column.heading != heading]
    curve_width = min(width - max(_width(columns), _TABLE_WIDTH) - 1, _LONGEST_CURVE)
    if curve_width >= _SHORTEST_CURVE and not left_out:
        columns.insert(3, _curves(schemes, runs, curve_width))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(column.heading, justify=justify, min_width=column.width, no_wrap=True)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    notes = _notes(schemes, runs)
    if left_out:
        notes += f"\nleft out   {', '.join(reversed(left_out))}: the window is too narrow"
    return Group(Text(_title(schemes, runs), "bold"), Text(), table, Text(), Text(notes, "dim"))


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(columns) - 1


def _columns(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> list[_Column]:
    metric, reference = schemes[0].metric, _reference(schemes)
    scores = [scheme.score_mean for scheme in schemes if np.isfinite(scheme.score_mean)]
    best = (max if metric.better == "higher" else min)(scores, default=np.nan)
    over = [scheme.energy_joules_mean > OVER_BUDGET * scheme.budget_joules for scheme in schemes]

    def plain(texts: Iterable[str]) -> list[Text]:
        return [Text(text) for text in texts]

    of = {scheme.name: [run for run in runs if run.scheme == scheme.name] for scheme in schemes}
    columns = [
        _Column("scheme", [Text(_folded(scheme.name), "bold") for scheme in schemes], left=True),
        _Column("energy\nrule", plain(scheme.energy_rule for scheme in schemes), left=True),
        _Column(
            metric_heading(metric),
            [
                Text(_interval(metric, one.score_mean, one.score_ci95), "bold" if one.score_mean == best else "")
                for one in schemes
            ],
        ),
        _Column(
            f"difference\nto {reference}", plain(_difference(metric, of[one.name], of[reference]) for one in schemes)
        ),
        _Column(
            "energy\nJ",
            [
                Text(f"{scheme.energy_joules_mean:,.0f}{'!' if beyond else ''}", "red" if beyond else "")
                for scheme, beyond in zip(schemes, over, strict=True)
            ],
        ),
        _Column("kept\n%", plain(f"{100 * scheme.kept_fraction_mean:.0f}" for scheme in schemes)),
        _Column("uploads\n/device", plain(f"{scheme.uploads_per_device:.1f}" for scheme in schemes)),
        _Column("failed", plain(f"{scheme.failed_uploads_per_device:.1f}" for scheme in schemes)),
        _Column("age", plain(f"{scheme.staleness_rounds_mean:.0f}" for scheme in schemes)),
    ]
    return columns if len(schemes) > 1 else columns[:3] + columns[4:]


def _curves(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], width: int) -> _Column:
    metric = schemes[0].metric
    every = np.concatenate([run.evaluations["score"] for run in runs])
    top = 1.0 if metric.percent else float(every[np.isfinite(every)].max(initial=0.0)) or 1.0
    cells = [
        Text(sparkline(mean_curve([run for run in runs if run.scheme == scheme.name]) / top, width))
        for scheme in schemes
    ]
    return _Column(f"{metric_words_and_unit(metric)[0]}\nover rounds", cells, left=True)


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


def _folded(name: str) -> str:
    """A long name continues on the next line, before a colon."""
    first, *choices = name.split(":")
    lines = [first]
    for choice in choices:
        if len(f"{lines[-1]}:{choice}") <= _NAME_WIDTH:
            lines[-1] += f":{choice}"
        else:
            lines.append(f"  :{choice}")
    return "\n".join(lines)


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
