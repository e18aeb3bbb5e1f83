"""Fig. 11: trajectories against speed."""

from __future__ import annotations

from wayfare.studies.paper.base import BILLED_SCHEMES, SPEEDS, PaperFigure
from wayfare.studies.paper.fig10 import QUICK_SCENES, UNIFORM

FIGURE = PaperFigure(
    name="fig11",
    title="ADE against speed on Argoverse",
    claim="MADS is below the benchmarks at every speed",
    drawing="metric",
    full={
        "name": "argoverse-by-speed",
        "scenario": "paper-argoverse-waypoint",
        "schemes": BILLED_SCHEMES,
        "seeds": 1,
        "grid": SPEEDS,
    },
    quick={
        **QUICK_SCENES,
        "schemes": ["mads", "afl"],
        "set": {"rounds": 60, "learning": {"evaluate_every_rounds": 20, "partition": UNIFORM}},
        "grid": {"mobility": {"speed_mps": [5.0, 20.0, 40.0]}},
    },
)
