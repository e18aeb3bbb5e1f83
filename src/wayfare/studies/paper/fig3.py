"""Fig. 3: inter-contact time."""

from __future__ import annotations

from wayfare.studies.paper.base import MILD, QUICK, PaperFigure

FIGURE = PaperFigure(
    name="fig3",
    title="Test accuracy against rounds, for different mean inter-contact times",
    claim="accuracy and its rate fall with the inter-contact time, from 100 s to 1,600 s",
    drawing="curves",
    full={
        "name": "inter-contact-time",
        "scenario": "paper-cifar10-exponential",
        "schemes": ["optimal"],
        "seeds": 1,
        "set": MILD,
        "grid": {"mobility": {"inter_contact_s": [100.0, 200.0, 400.0, 800.0, 1600.0]}},
    },
    quick={**QUICK, "set": {"rounds": 600, "mobility": {"model": "exponential", "contact_s": 7.0}}},
)
