"""Fig. 7: the weight V and energy; one study with Fig. 6."""

from __future__ import annotations

from wayfare.studies.paper.base import PaperFigure, Quoted
from wayfare.studies.paper.fig6 import QUICK_WEIGHTS, WEIGHTS

FIGURE = PaperFigure(
    name="fig7",
    title="Energy against the weight V",
    claim="energy rises with V, passes the budget and ends at that of always transmitting at full power",
    drawing="metric",
    metric="energy_joules",
    full=WEIGHTS,
    quick=QUICK_WEIGHTS,
    numbers=(
        Quoted(paper=2000.0, scheme="mads", at=1e-4, metric="energy_joules"),
        Quoted(paper=6700.0, scheme="mads", at=1e-2, metric="energy_joules"),
    ),
)
