"""Fig. 9: all schemes against speed."""

from __future__ import annotations

from wayfare.studies.paper.base import QUICK, SCHEMES, PaperFigure

FIGURE = PaperFigure(
    name="fig9",
    title="Test accuracy of all schemes against speed",
    claim="alike at low speed; the faster, the further MADS is ahead",
    drawing="metric",
    full={
        "name": "schemes-by-speed",
        "scenario": "paper-cifar10-waypoint",
        "schemes": SCHEMES,
        "seeds": 3,
        "grid": {"mobility": {"speed_mps": [1.0, 5.0, 10.0, 20.0, 40.0]}},
    },
    quick={**QUICK, "set": {"rounds": 300}, "grid": {"mobility": {"speed_mps": [2.0, 10.0, 40.0]}}},
    numbers={
        "mads at 20 m/s": "71.15 %",
        "afl-spar at 20 m/s": "2.82 below MADS",
        "fedmobile at 20 m/s": "8.76 below MADS",
        "afl at 20 m/s": "13.69 below MADS",
        "sfl-spar": "below 60 % at every speed",
    },
)
