"""Fig. 4: what speed does to contacts. Nothing is trained."""

from __future__ import annotations

from wayfare.studies.paper.base import PaperFigure

FIGURE = PaperFigure(
    name="fig4",
    title="Contact and inter-contact time against speed",
    claim="both fall like 1 / speed",
    drawing="contact times",
    full={"name": "contact-times-by-speed", "scenario": "paper-cifar10-waypoint"},
    quick={"scenario": "fashion-small"},
    fixed=("mobility.model", "mobility.speed_mps", "rounds"),
)
