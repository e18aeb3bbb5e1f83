"""Figures, drawn with matplotlib (the extra `report`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wayfare.errors import InputError, UnavailableError
from wayfare.records import RunRecord, SchemeSummary

# Okabe and Ito's palette, told apart by colour-blind readers; a scheme has the same colour everywhere.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#8C8C8C", "#F0E442")
# Lines that lie on each other stay visible: ideal and paced curves are broken.
_DASHES = {"optimal": (0, (5, 3)), "afl-spar:paced": (0, (1, 1.6))}
_KNOWN = ("mads", "optimal", "afl-spar", "afl-spar:paced", "afl", "sfl-spar", "fedmobile", "fedasync")


def colour_of(scheme: str, others: Sequence[str]) -> str:
    """The colour of a scheme: fixed for ours, in order of appearance for others."""
    place = (
        _KNOWN.index(scheme) if scheme in _KNOWN else len(_KNOWN) + [s for s in others if s not in _KNOWN].index(scheme)
    )
    return _PALETTE[place % len(_PALETTE)]


def score_curves(schemes: Sequence[SchemeSummary], runs: Sequence[RunRecord], file: Path) -> None:
    """Score against rounds, a line for each scheme and a band from the least to the greatest seed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("figures need matplotlib: pip install 'wayfare[report]'") from None
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    metric = schemes[0].metric
    names = [scheme.name for scheme in schemes]
    for scheme in schemes:
        mine = [run for run in runs if run.scheme == scheme.name]
        rounds = mine[0].evaluations["round"]
        score = (100 if metric.percent else 1) * np.array([run.evaluations["score"] for run in mine])
        colour = colour_of(scheme.name, names)
        energy = f"{scheme.energy_joules_mean:,.0f} J"
        axes.plot(
            rounds,
            score.mean(axis=0),
            color=colour,
            lw=1.8,
            ls=_DASHES.get(scheme.name, "-"),
            label=f"{scheme.name} ({energy})",
        )
        axes.fill_between(rounds, score.min(axis=0), score.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("round")
    axes.set_ylabel(f"test {metric.name}" + (" (%)" if metric.percent else ""))
    axes.set_title(f"{runs[0].scenario.name}: budget {schemes[0].budget_joules:,.0f} J", loc="left")
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot write the figure: {error}") from None
