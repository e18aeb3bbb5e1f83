"""Tables and small curves for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from wayfare.arrays import Floats
from wayfare.records import RunRecord, SchemeSummary

_BARS = "▁▂▃▄▅▆▇█"


def comparison_table(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord]) -> Table:
    """Accuracy, energy against budget and how much of each update got through, for every scheme."""
    scenario = runs[0].scenario
    last = min(scenario.learning.final_evaluations, len(runs[0].evaluations["round"]))
    seeds = max(scheme.seeds for scheme in schemes)
    table = Table(
        title=f"{scenario.name}: {scenario.fleet.devices} devices, {scenario.rounds:,} rounds, "
        f"{seeds} seed{'s' if seeds > 1 else ''}",
        caption=f"Accuracy: mean of the last {last} evaluations"
        + (", ± 95 % interval over seeds" if seeds > 1 else "; one seed only, not a result")
        + ". Energy over budget in red.\nKept: share of an update's entries that a contact delivered. "
        "Staleness: rounds since the model was received.",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("scheme", style="bold")
    table.add_column("energy rule")
    table.add_column("accuracy", justify="right")
    table.add_column("accuracy over rounds")
    table.add_column("energy / budget", justify="right")
    table.add_column("kept", justify="right")
    table.add_column("uploads per device", justify="right")
    table.add_column("failed", justify="right")
    table.add_column("staleness", justify="right")
    best = max(scheme.accuracy_mean for scheme in schemes)
    for scheme in schemes:
        over = scheme.energy_joules_mean > 1.03 * scheme.budget_joules
        interval = "" if scheme.accuracy_ci95 is None else f" ± {100 * scheme.accuracy_ci95:.1f}"
        table.add_row(
            Text(scheme.name),
            scheme.energy_rule,
            Text(f"{100 * scheme.accuracy_mean:.1f}{interval} %", "bold" if scheme.accuracy_mean == best else ""),
            sparkline(mean_curve([run for run in runs if run.scheme == scheme.name]), 24),
            Text(f"{scheme.energy_joules_mean:,.0f} / {scheme.budget_joules:,.0f} J", "red" if over else ""),
            f"{100 * scheme.kept_fraction_mean:.0f} %",
            f"{scheme.uploads_per_device:.1f}",
            f"{scheme.failed_uploads_per_device:.1f}",
            f"{scheme.staleness_rounds_mean:.0f}",
        )
    return table


def mean_curve(runs: Sequence[RunRecord]) -> Floats:
    """Accuracy of every evaluation, the mean over runs."""
    return np.asarray(np.mean([run.evaluations["accuracy"] for run in runs], axis=0))


def sparkline(values: Floats, width: int) -> str:
    """A curve of accuracies between 0 and 1 in one line of text."""
    places = np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)
    heights = np.clip(values[places] * len(_BARS), 0, len(_BARS) - 1).astype(int)
    return "".join(_BARS[height] for height in heights)
