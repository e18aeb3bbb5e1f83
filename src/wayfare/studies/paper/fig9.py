"""Fig. 9: all schemes against speed."""

from __future__ import annotations

from wayfare.studies.paper.base import MILD, QUICK, SCHEMES, SPEEDS, PaperFigure, Quoted

FIGURE = PaperFigure(
    name="fig9",
    title="Test accuracy of all schemes against speed",
    claim="alike at low speed; the faster, the further MADS is ahead",
    drawing="metric",
    full={
        "name": "schemes-by-speed",
        "scenario": "paper-cifar10-waypoint",
        "schemes": SCHEMES,
        "seeds": 1,  # three at 20 m/s are those of Fig. 8 (b)
        "set": MILD,
        "grid": SPEEDS,
    },
    quick={**QUICK, "set": {"rounds": 300}, "grid": {"mobility": {"speed_mps": [2.0, 10.0, 40.0]}}},
    numbers=(
        Quoted(paper=71.15, scheme="mads", at=20.0),
        Quoted(paper=2.82, scheme="afl-spar", below="mads", at=20.0),
        Quoted(paper=8.76, scheme="fedmobile", below="mads", at=20.0),
        Quoted(paper=13.69, scheme="afl", below="mads", at=20.0),
    ),
)
