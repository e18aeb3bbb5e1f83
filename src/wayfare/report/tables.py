"""Tables and sparklines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from wayfare.arrays import Floats
from wayfare.contacts import TraceUse
from wayfare.learning.tasks import Metric
from wayfare.methods import scheme_label
from wayfare.records import RunRecord, RunSummary, SchemeSummary, final_evaluations, paired_difference, summarise_run
from wayfare.report.caveats import backbone_text, distinct, no_contact, trace_text, withheld
from wayfare.report.columns import (
    BUDGET_NOTE,
    ENERGY,
    SCHEME,
    Column,
    Note,
    has_kept_share,
    in_terminal,
    of_one_size,
    over_budget,
    rich_notes,
    rich_table,
    side_by_side,
    total_width,
)
from wayfare.report.labels import (
    ASSUMED,
    is_of_devices,
    metric_heading,
    metric_words_and_unit,
    named_with_task,
    number_text,
    other_heading,
    other_text,
)

_BARS = "▁▂▃▄▅▆▇█"
_SHORTEST_CURVE, _LONGEST_CURVE = 10, 40
_TABLE_WIDTH = 80
_SIZES_DIFFER = "; updates differ in size, so shares of an update do not compare"
KEPT, SENT = "kept\n%", "sent\nMbit"
# Headings of columns that a narrow window omits, in this order.
_LEAVES_FIRST = ("age", "failed", "uploads\n/device", KEPT, "energy\nrule", ENERGY)


def comparison_table(
    schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], *, width: int = _TABLE_WIDTH
) -> Group:
    """The table of a comparison: score, energy and delivered share of updates for every scheme.

    Numbers and names are never truncated. A narrow window omits whole columns, and a note names them.
    """
    of = [[summarise_run(run) for run in runs if run.scheme == scheme.name] for scheme in schemes]
    columns, left_out = in_terminal(comparison_columns(schemes, of)), []
    metric = schemes[0].metric
    more = [other_heading(name, metric) for name in schemes[0].others if not is_of_devices(name, metric)]
    for heading in (*more, *_LEAVES_FIRST):
        if total_width(columns) <= width:
            break
        left_out.append(heading.replace("\n", " "))
        columns = [column for column in columns if column.heading != heading]
    curve_width = min(width - max(total_width(columns), _TABLE_WIDTH) - 1, _LONGEST_CURVE)
    if curve_width >= _SHORTEST_CURVE and not left_out:
        columns.insert(3, _curves(schemes, runs, curve_width))
    tables = [rich_table(group, range(len(schemes))) for group in side_by_side(columns, width)]
    learning = runs[0].scenario.learning.model_dump()
    notes = comparison_notes(schemes, final_evaluations(runs[0]), learning, [run.trace for run in runs])
    if left_out:
        notes.append(Note("omitted", f"{', '.join(reversed(left_out))}: the window is too narrow"))
    below = rich_notes(notes, list(_warnings(schemes, runs)))
    return Group(Text(_title(schemes, runs), "bold"), Text(), *tables, Text(), below)


def comparison_columns(schemes: Sequence[SchemeSummary], runs: Sequence[Sequence[RunSummary]]) -> list[Column]:
    metric, names = schemes[0].metric, [scheme.name for scheme in schemes]
    # Differences are to MADS if present, otherwise to the first scheme.
    reference = "mads" if "mads" in names else names[0]
    scores = [scheme.score_mean for scheme in schemes]
    best = (max if metric.better == "higher" else min)([score for score in scores if np.isfinite(score)], default=None)
    theirs = runs[names.index(reference)]
    columns = [
        Column(heading=SCHEME, cells=[*map(scheme_label, names)], left=True),
        Column(heading="energy\nrule", cells=[scheme.energy_rule for scheme in schemes], left=True),
        Column(
            heading=metric_heading(metric),
            cells=[_interval(metric, scheme.score_mean, scheme.score_ci95) for scheme in schemes],
            marked=[score == best for score in scores],
        ),
        Column(heading=f"difference\nto {scheme_label(reference)}", cells=[_difference(mine, theirs) for mine in runs]),
        Column(
            heading=ENERGY,
            cells=[number_text(scheme.energy_joules_mean) for scheme in schemes],
            marked=[over_budget(scheme) for scheme in schemes],
        ),
        _delivered_column(schemes),
        Column(heading="uploads\n/device", cells=[f"{scheme.uploads_per_device:.1f}" for scheme in schemes]),
        Column(heading="failed", cells=[f"{scheme.failed_uploads_per_device:.1f}" for scheme in schemes]),
        Column(heading="age", cells=[f"{scheme.staleness_rounds_mean:.0f}" for scheme in schemes]),
        *_epsilon_column(schemes),
        *(
            Column(
                heading=other_heading(name, metric),
                cells=[other_text(name, scheme.others[name], metric) for scheme in schemes],
            )
            for name in schemes[0].others
            if all(name in scheme.others for scheme in schemes)
        ),
    ]
    return columns if len(schemes) > 1 else columns[:3] + columns[4:]


def _delivered_column(schemes: Sequence[SchemeSummary]) -> Column:
    if has_kept_share(schemes):
        return Column(heading=KEPT, cells=[f"{100 * scheme.kept_fraction_mean:.0f}" for scheme in schemes])
    return Column(heading=SENT, cells=[number_text(1e-6 * scheme.bits_mean) for scheme in schemes])


def _epsilon_column(schemes: Sequence[SchemeSummary]) -> list[Column]:
    """Only if a scheme is private."""
    epsilons = [scheme.epsilon_max for scheme in schemes]
    if all(epsilon is None for epsilon in epsilons):
        return []
    return [Column(heading="epsilon", cells=["∞" if one is None else number_text(one) for one in epsilons])]


def _curves(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], width: int) -> Column:
    metric = schemes[0].metric
    every = np.concatenate([run.evaluations["score"] for run in runs])
    top = 1.0 if metric.percent else float(every[np.isfinite(every)].max(initial=0.0)) or 1.0
    cells = [
        sparkline(mean_curve([run for run in runs if run.scheme == scheme.name]) / top, width) for scheme in schemes
    ]
    return Column(heading=f"{metric_words_and_unit(metric)[0]}\nover rounds", cells=cells, left=True)


def mean_curve(runs: Sequence[RunRecord]) -> Floats:
    return np.asarray(np.mean([run.evaluations["score"] for run in runs], axis=0))


def sparkline(values: Floats, width: int) -> str:
    """A curve of values between 0 and 1 in one line of text."""
    indices = np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)
    shown = values[indices]
    heights = np.clip(np.nan_to_num(shown) * len(_BARS), 0, len(_BARS) - 1).astype(int)
    # NaN gets no bar.
    return "".join(_BARS[height] if known else " " for height, known in zip(heights, np.isfinite(shown), strict=True))


def _interval(metric: Metric, value: float, half_width: float | None, sign: str = "") -> str:
    # With an interval, a third digit does not fit and rarely means anything.
    digits = 1 if metric.percent else 3 if half_width is None else 2
    return metric.with_interval(value, half_width, digits, sign)


def _difference(mine: Sequence[RunSummary], reference: Sequence[RunSummary]) -> str:
    if mine[0].scheme == reference[0].scheme or not {run.seed for run in mine} & {run.seed for run in reference}:
        return ""
    found = paired_difference(mine, reference)
    return _interval(mine[0].metric, found.mean, found.ci95, sign="+")


def _title(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> str:
    scenario = runs[0].scenario
    fewest, most = min(scheme.seeds for scheme in schemes), max(scheme.seeds for scheme in schemes)
    seeds = f"{fewest} to {most}" if fewest < most else f"{most}"
    return (
        f"{named_with_task(scenario.name, scenario.learning.task)}: {scenario.fleet.devices} devices, "
        f"{scenario.rounds:,} rounds, "
        f"energy budget {number_text(schemes[0].budget_joules)} J, {seeds} seed{'s' if most > 1 else ''}"
    )


def comparison_notes(
    schemes: Sequence[SchemeSummary],
    last: int,
    learning: Mapping[str, Any],
    traces: Sequence[TraceUse | None] = (),
) -> list[Note]:
    backbone = backbone_text([learning], schemes)
    several = max(scheme.seeds for scheme in schemes) > 1
    name = metric_words_and_unit(schemes[0].metric)[0]
    over = "the last evaluation" if last == 1 else f"the mean of the last {last} evaluations"
    spread = Note("±", "95 % interval; differences are paired: same seed, same world")
    return [
        Note(name, f"on test data: {over}" + (", averaged over seeds" if several else "")),
        spread if several else Note("seed", "a single seed is not a result"),
        Note("energy", BUDGET_NOTE),
        Note("kept", "share of an update delivered in a contact; the rest stays in memory")
        if has_kept_share(schemes)
        else Note("sent", f"by all devices{_SIZES_DIFFER * (not of_one_size(schemes))}"),
        Note("failed", "uploads per device that did not finish in their contact; they waste energy"),
        Note("age", "mean staleness: rounds since a device received its model"),
        *epsilon_note(schemes),
        Note("assumed", ASSUMED),
        *([Note("backbone", backbone)] if backbone else []),
        *(
            [Note("device", "mean over devices, and over the worst tenth; each device is scored on its own data")]
            if any(is_of_devices(name, schemes[0].metric) for name in schemes[0].others)
            else []
        ),
        *(Note("trace", trace_text(use)) for use in distinct(traces)),
        *(
            Note(
                "relays",
                f"{scheme_label(scheme.name)}, per device: {scheme.relayed_per_device:.1f} updates relayed, "
                f"{scheme.delivered_per_device:.1f} delivered, {scheme.models_taken_per_device:.1f} newer models "
                f"taken, {scheme.failed_relays_per_device:.1f} failed attempts",
            )
            for scheme in schemes
            if scheme.relayed_per_device or scheme.models_taken_per_device or scheme.failed_relays_per_device
        ),
    ]


def epsilon_note(schemes: Sequence[SchemeSummary]) -> list[Note]:
    """What epsilon means, if a scheme is private."""
    at = ", ".join(dict.fromkeys(f"{scheme.delta:g}" for scheme in schemes if scheme.delta is not None))
    text = f"differential privacy of the device with the most releases, at delta = {at}"
    return [Note("epsilon", text)] if at else []


def _warnings(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> Iterator[Note]:
    summaries = [("", summarise_run(run)) for run in runs]
    if silent := no_contact(summaries):
        yield Note("contacts", silent)
    for reason in withheld(summaries):
        yield Note("withheld", reason)
    if mixed := sorted({run.seed for run in runs} - _same_worlds(runs)):
        listed = ", ".join(map(str, mixed))
        yield Note("worlds", f"of seed {listed} differ: a trace, data or code changed between runs. Repeat them")
    if len({scheme.seeds for scheme in schemes}) > 1:
        counts = ", ".join(f"{scheme_label(scheme.name)} {scheme.seeds}" for scheme in schemes)
        yield Note("uneven", f"numbers of seeds differ: {counts}; only differences use common seeds")


def _same_worlds(runs: Sequence[RunRecord]) -> set[int]:
    """The seeds whose runs all have the same contacts, channels, budgets and data."""
    worlds: dict[int, list[dict[str, str]]] = {}
    for run in runs:
        worlds.setdefault(run.seed, []).append(run.meta.get("world", {}))
    # Schemes with relays also record contacts between devices.
    return {seed for seed, met in worlds.items() if all(one | other == other | one for one in met for other in met)}
