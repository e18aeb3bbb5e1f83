"""Tables and small curves for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from wayfare.arrays import Floats
from wayfare.records import RunRecord, SchemeSummary

# Energy counts as over budget from here on: a controller steers by a queue, not by a wall.
OVER_BUDGET = 1.03

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_CURVE = 40
_COLUMNS = (
    ("scheme", 14),
    ("energy\nrule", 9),
    ("{metric}\n{unit}", 11),
    ("{metric}\nover time", 0),
    ("energy\nJ", 6),
    ("kept\n%", 4),
    ("uploads\n/device", 7),
    ("failed\n/device", 7),
    ("age", 4),
)


def comparison_table(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], *, width: int = 80) -> Group:
    """Score, energy against budget and how much of each update got through, for every scheme."""
    scenario = runs[0].scenario
    last = min(scenario.learning.final_evaluations, len(runs[0].evaluations["round"]))
    seeds = max(scheme.seeds for scheme in schemes)
    budget = f"{schemes[0].budget_joules:,.0f} J"
    title = (
        f"{scenario.name}: {scenario.fleet.devices} devices, {scenario.rounds:,} rounds, "
        f"energy budget {budget}, {seeds} seed{'s' if seeds > 1 else ''}"
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
    metric = schemes[0].metric
    for heading, width_ in _COLUMNS:
        left = heading in ("scheme", "energy\nrule", "{metric}\nover time")
        name = heading.format(metric=metric.name, unit="%" if metric.percent else "")
        table.add_column(name, justify="left" if left else "right", min_width=width_, no_wrap=True)
    digits = 1 if metric.percent else 3
    curve_width = min(max(width - sum(width_ for _, width_ in _COLUMNS) - len(_COLUMNS), 9), _LONGEST_CURVE)
    scores = [scheme.score_mean for scheme in schemes]
    best = max(scores) if metric.better == "higher" else min(scores)
    top = 1.0 if metric.percent else max(float(run.evaluations["score"].max()) for run in runs)
    scale = 100 if metric.percent else 1
    for scheme in schemes:
        interval = "" if scheme.score_ci95 is None else f" ± {scale * scheme.score_ci95:.{digits}f}"
        over = scheme.energy_joules_mean > OVER_BUDGET * scheme.budget_joules
        table.add_row(
            Text(scheme.name, "bold"),
            scheme.energy_rule,
            Text(f"{scale * scheme.score_mean:.{digits}f}{interval}", "bold" if scheme.score_mean == best else ""),
            sparkline(mean_curve([run for run in runs if run.scheme == scheme.name]) / top, curve_width),
            Text(f"{scheme.energy_joules_mean:,.0f}", "red" if over else ""),
            f"{100 * scheme.kept_fraction_mean:.0f}",
            f"{scheme.uploads_per_device:.1f}",
            f"{scheme.failed_uploads_per_device:.1f}",
            f"{scheme.staleness_rounds_mean:.0f}",
        )
    notes = [
        f"{metric.name:9} on test data, mean of the last {last} evaluations"
        + (", ± 95 % interval over seeds" if seeds > 1 else "; one seed is not a result"),
        "energy    spent on transmitting, all devices; red: over budget by more than 3 %",
        "kept      share of an update delivered in a contact; the rest is offered again",
        "failed    dense uploads that a contact cut short: their energy is lost",
        "age       rounds since a device received its model, when it meets the server",
    ]
    return Group(Text(title, "bold"), Text(), table, Text(), Text("\n".join(notes), "dim"))


def mean_curve(runs: Sequence[RunRecord]) -> Floats:
    """The score of every evaluation, the mean over runs."""
    return np.asarray(np.mean([run.evaluations["score"] for run in runs], axis=0))


def sparkline(values: Floats, width: int) -> str:
    """A curve of values between 0 and 1 in one line of text."""
    places = np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)
    heights = np.clip(values[places] * len(_BARS), 0, len(_BARS) - 1).astype(int)
    return "".join(_BARS[height] for height in heights)
