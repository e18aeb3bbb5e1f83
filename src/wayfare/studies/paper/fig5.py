"""Fig. 5: speed and convergence."""

from __future__ import annotations

from wayfare.studies.paper.base import MILD, QUICK, PaperFigure

FIGURE = PaperFigure(
    name="fig5",
    title="Rounds to a target accuracy against speed",
    claim="rounds fall with the speed and then rise again: a U",
    drawing="rounds to target",
    full={
        "name": "convergence-by-speed",
        "scenario": "paper-cifar10-waypoint",
        "schemes": ["optimal"],
        "seeds": 1,
        "set": MILD,
        "targets": ["30 %", "40 %", "50 %"],
        "grid": {"mobility": {"speed_mps": [1.0, 2.0, 5.0, 10.0, 20.0, 40.0]}},
    },
    quick={**QUICK, "set": {"rounds": 800}, "targets": ["50 %", "60 %"]},
)
