"""Fig. 6: the weight V and accuracy; one study with Fig. 7."""

from __future__ import annotations

from wayfare.studies.paper.base import MILD, QUICK, PaperFigure

WEIGHTS = {
    "name": "weight",
    "scenario": "paper-cifar10-waypoint",
    "schemes": ["mads"],
    "seeds": 1,
    "set": MILD,
    "grid": {"control": {"weight": [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1]}},
}
QUICK_WEIGHTS = {**QUICK, "set": {"rounds": 600}}

FIGURE = PaperFigure(
    name="fig6",
    title="Test accuracy against the weight V",
    claim="a larger V converges faster and ends higher",
    drawing="metric",
    full=WEIGHTS,
    quick=QUICK_WEIGHTS,
)
