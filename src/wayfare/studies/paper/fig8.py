"""Fig. 8: all schemes, on data that is more and less alike."""

from __future__ import annotations

from wayfare.studies.paper.base import QUICK, SCHEMES, PaperFigure, Quoted


def _figure(letter: str, concentration: float, numbers: tuple[Quoted, ...] = ()) -> PaperFigure:
    return PaperFigure(
        name=f"fig8{letter}",
        title=f"Test accuracy of all schemes against rounds, rho = {concentration:g}",
        claim="MADS is close to Optimal and above AFL-Spar, FedMobile, AFL and SFL-Spar, in this order",
        drawing="curves",
        full={
            "name": f"schemes-rho-{concentration:g}",
            "scenario": "paper-cifar10-waypoint",
            "schemes": SCHEMES,
            "seeds": 3,
            "set": {"learning": {"partition": {"concentration": concentration, "dealing": "once"}}},
        },
        quick={
            **QUICK,
            "set": {"rounds": 1000, "learning": {"partition": {"concentration": concentration}}},
        },
        numbers=numbers,
    )


FIGURES = (
    _figure("a", 10.0),
    _figure("b", 1.0),
    _figure(
        "c",
        0.1,
        (
            Quoted(paper=65.66, scheme="mads"),
            Quoted(paper=2.17, scheme="afl-spar", below="mads"),
            Quoted(paper=7.13, scheme="fedmobile", below="mads"),
            Quoted(paper=13.27, scheme="afl", below="mads"),
            Quoted(paper=52.25, scheme="sfl-spar", below="mads"),
        ),
    ),
)
