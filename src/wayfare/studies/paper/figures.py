"""The figures of the paper that Wayfare can repeat, each with a full and a quick study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wayfare.studies.paper.base import BILLED_SCHEMES, MILD, QUICK, SCHEMES, SPEEDS, PaperFigure, Quoted, QuotedGain

_CIFAR10, _ARGOVERSE = "paper-cifar10-waypoint", "paper-argoverse-waypoint"
# Fig. 6 and Fig. 7 share one study.
_WEIGHTS = {
    "name": "weight",
    "scenario": _CIFAR10,
    "schemes": ["mads"],
    "seeds": 1,
    "set": MILD,
    "grid": {"control": {"weight": [1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1]}},
}
_QUICK_WEIGHTS = {**QUICK, "set": {"rounds": 600}}
# The paper's partition; argoverse-small gives every device one city.
_UNIFORM = {"kind": "iid"}


def _times(name: str, varies: str, claim: str, mean_s: list[float], *, quick: dict[str, float]) -> PaperFigure:
    """Fig. 2 and Fig. 3: one of the two mean times varies; the quick figure has another value of the other."""
    return PaperFigure(
        name=name,
        title=f"Test accuracy against rounds, for different mean {varies} times",
        claim=f"accuracy and its rate {claim}",
        drawing="curves",
        full={
            "name": f"{varies}-time",
            "scenario": "paper-cifar10-exponential",
            "schemes": ["optimal"],
            "seeds": 1,
            "set": MILD,
            "grid": {"mobility": {f"{varies.replace('-', '_')}_s": mean_s}},
        },
        quick={**QUICK, "set": {"rounds": 600, "mobility": {"model": "exponential", **quick}}},
    )


def _all_schemes(letter: str, concentration: float, numbers: tuple[Quoted, ...] = ()) -> PaperFigure:
    """Fig. 8: all schemes, for data of different skew."""
    return PaperFigure(
        name=f"fig8{letter}",
        title=f"Test accuracy of all schemes against rounds, rho = {concentration:g}",
        claim="MADS is close to Optimal and above AFL-Spar, FedMobile, AFL and SFL-Spar, in this order",
        drawing="curves",
        full={
            "name": f"schemes-rho-{concentration:g}",
            "scenario": _CIFAR10,
            "schemes": SCHEMES,
            "seeds": 3,
            "set": {"learning": {"partition": {"concentration": concentration, "dealing": "once"}}},
        },
        quick={**QUICK, "set": {"rounds": 1000, "learning": {"partition": {"concentration": concentration}}}},
        numbers=numbers,
    )


def _quick_scenes(schemes: list[str], rounds: int, every: int, **more: object) -> dict[str, Any]:
    learning = {"evaluate_every_rounds": every, "partition": _UNIFORM}
    settings = {"rounds": rounds, "learning": learning}
    return {"scenario": "argoverse-small", "seeds": 1, "schemes": schemes, "set": settings, **more}


_FIGURES = (
    _times(
        "fig2",
        "contact",
        "rise with the contact time, from 1 s to 16 s",
        [1.0, 2.0, 4.0, 8.0, 16.0],
        quick={"inter_contact_s": 150.0},
    ),
    _times(
        "fig3",
        "inter-contact",
        "fall with the inter-contact time, from 100 s to 1,600 s",
        [100.0, 200.0, 400.0, 800.0, 1600.0],
        quick={"contact_s": 7.0},
    ),
    # The effect of speed on contacts, without training.
    PaperFigure(
        name="fig4",
        title="Contact and inter-contact time against speed",
        claim="both fall like 1 / speed",
        drawing="contact times",
        full={"name": "contact-times-by-speed", "scenario": _CIFAR10},
        quick={"scenario": "fashion-small"},
        fixed=("mobility.model", "mobility.speed_mps", "rounds"),
    ),
    PaperFigure(
        name="fig5",
        title="Rounds to a target accuracy against speed",
        claim="rounds fall with the speed and then rise again: a U",
        drawing="rounds to target",
        full={
            "name": "convergence-by-speed",
            "scenario": _CIFAR10,
            "schemes": ["optimal"],
            "seeds": 1,
            "set": MILD,
            "targets": ["30 %", "40 %", "50 %"],
            "grid": {"mobility": {"speed_mps": [1.0, 2.0, 5.0, 10.0, 20.0, 40.0]}},
        },
        quick={**QUICK, "set": {"rounds": 800}, "targets": ["50 %", "60 %"]},
    ),
    PaperFigure(
        name="fig6",
        title="Test accuracy against the weight V",
        claim="a larger V converges faster and ends higher",
        drawing="metric",
        full=_WEIGHTS,
        quick=_QUICK_WEIGHTS,
    ),
    PaperFigure(
        name="fig7",
        title="Energy against the weight V",
        claim="energy rises with V, passes the budget and ends at that of always transmitting at full power",
        drawing="metric",
        metric="energy_joules",
        full=_WEIGHTS,
        quick=_QUICK_WEIGHTS,
        numbers=(
            Quoted(paper=2000.0, scheme="mads", at=1e-4, metric="energy_joules"),
            Quoted(paper=6700.0, scheme="mads", at=1e-2, metric="energy_joules"),
        ),
    ),
    _all_schemes("a", 10.0),
    _all_schemes("b", 1.0),
    _all_schemes(
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
    PaperFigure(
        name="fig9",
        title="Test accuracy of all schemes against speed",
        claim="alike at low speed; the faster, the further MADS is ahead",
        drawing="metric",
        full={
            "name": "schemes-by-speed",
            "scenario": _CIFAR10,
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
    ),
    PaperFigure(
        name="fig10",
        title="ADE against rounds on Argoverse",
        claim="MADS ends 9.46 % below the state of the art, read here as the best benchmark",
        drawing="curves",
        full={"name": "argoverse", "scenario": _ARGOVERSE, "schemes": BILLED_SCHEMES, "seeds": 1},
        quick=_quick_scenes(["mads", "afl-spar", "afl"], 90, 10),
        numbers=(QuotedGain(paper=9.46, scheme="mads", others=("afl-spar", "fedmobile:billed", "afl", "sfl-spar")),),
    ),
    PaperFigure(
        name="fig11",
        title="ADE against speed on Argoverse",
        claim="MADS is below the benchmarks at every speed",
        drawing="metric",
        full={
            "name": "argoverse-by-speed",
            "scenario": _ARGOVERSE,
            "schemes": BILLED_SCHEMES,
            "seeds": 1,
            "grid": SPEEDS,
        },
        quick=_quick_scenes(["mads", "afl"], 60, 20, grid={"mobility": {"speed_mps": [5.0, 20.0, 40.0]}}),
    ),
)

FIGURES: Mapping[str, PaperFigure] = {figure.name: figure for figure in _FIGURES}
