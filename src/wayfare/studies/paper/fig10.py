"""Fig. 10: trajectories."""

from __future__ import annotations

from wayfare.studies.paper.base import BILLED_SCHEMES, PaperFigure, QuotedGain

QUICK_SCENES = {"scenario": "argoverse-small", "seeds": 1, "schemes": ["mads", "afl-spar", "afl"]}
UNIFORM = {"kind": "iid"}  # the paper's division; argoverse-small gives every device a city

FIGURE = PaperFigure(
    name="fig10",
    title="ADE against rounds on Argoverse",
    claim="MADS ends 9.46 % below the state of the art, read here as the best benchmark",
    drawing="curves",
    full={"name": "argoverse", "scenario": "paper-argoverse-waypoint", "schemes": BILLED_SCHEMES, "seeds": 1},
    quick={**QUICK_SCENES, "set": {"rounds": 90, "learning": {"evaluate_every_rounds": 10, "partition": UNIFORM}}},
    numbers=(QuotedGain(paper=9.46, scheme="mads", others=("afl-spar", "fedmobile:billed", "afl", "sfl-spar")),),
)
