"""Fig. 2: contact time."""

from __future__ import annotations

from wayfare.studies.paper.base import MILD, QUICK, PaperFigure

FIGURE = PaperFigure(
    name="fig2",
    title="Test accuracy against rounds, for different mean contact times",
    claim="accuracy and its rate rise with the contact time, from 1 s to 16 s",
    drawing="curves",
    full={
        "name": "contact-time",
        "scenario": "paper-cifar10-exponential",
        "schemes": ["optimal"],
        "seeds": 1,
        "set": MILD,
        "grid": {"mobility": {"contact_s": [1.0, 2.0, 4.0, 8.0, 16.0]}},
    },
    quick={**QUICK, "set": {"rounds": 600, "mobility": {"model": "exponential", "inter_contact_s": 150.0}}},
)
