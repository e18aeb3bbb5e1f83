"""Colours and dashes of schemes: the same in every table, curve, map and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Dash: TypeAlias = Literal["solid", "dash", "dot", "dashdot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a scheme is drawn: its colour on light and on dark ground, and how its line is broken."""

    light: str
    dark: str
    dash: Dash


# Okabe and Ito's palette, told apart by colour-blind readers, and a violet. Black and yellow vanish on one of the two
# grounds and have a shade for each.
_COLOURS = (
    ("#0072B2", "#3B9BD6"),
    ("#D55E00", "#E8772E"),
    ("#009E73", "#1DB58B"),
    ("#E69F00", "#E69F00"),
    ("#CC79A7", "#CC79A7"),
    ("#56B4E9", "#56B4E9"),
    ("#000000", "#E6E6E6"),
    ("#A89400", "#F0E442"),
    ("#7A3E9D", "#B07CD0"),
)
_KNOWN = ("mads", "optimal", "afl-spar", "afl-spar:paced", "afl", "sfl-spar", "fedmobile", "fedasync", "mads-rd")
# Another reading of a scheme has its colour.
_READINGS = {
    "afl:fitting": "afl",
    "fedasync:fitting": "fedasync",
    "fedmobile:fitting": "fedmobile",
    "fedmobile:billed": "fedmobile",
}
# Curves that lie on each other stay visible: ideal and paced ones and other readings are broken.
_DASHES: dict[str, Dash] = {
    "optimal": "dash",
    "afl-spar:paced": "dot",
    "afl:fitting": "dash",
    "fedasync:fitting": "dash",
    "fedmobile:fitting": "dash",
    "fedmobile:billed": "dot",
}
# Schemes beyond the palette have its colours again, broken as none of ours is; then as few of ours are.
_ROUNDS: tuple[Dash, ...] = ("solid", "dashdot", "dash", "dot")
_MATPLOTLIB = {"solid": "-", "dash": (0, (5, 3)), "dot": (0, (1, 1.6)), "dashdot": (0, (5, 2, 1, 2))}


def look_of(scheme: str, others: Sequence[str]) -> Look:
    """The look of a scheme: fixed for ours, in order of appearance for others."""
    known = _READINGS.get(scheme, scheme)
    if known in _KNOWN:
        place = _KNOWN.index(known)
    else:
        place = len(_KNOWN) + [name for name in others if name not in (*_KNOWN, *_READINGS)].index(scheme)
    light, dark = _COLOURS[place % len(_COLOURS)]
    dash = _DASHES.get(scheme, _ROUNDS[place // len(_COLOURS) % len(_ROUNDS)])
    return Look(light=light, dark=dark, dash=dash)


def colour_of(scheme: str, others: Sequence[str]) -> str:
    """The colour of a scheme on paper."""
    return look_of(scheme, others).light


def height_of(scheme: str, others: Sequence[str]) -> float:
    """Where matplotlib draws the line of a scheme: broken ones last, or a whole one on the same course hides them."""
    return 2.0 if look_of(scheme, others).dash == "solid" else 2.5


def dashes_of(scheme: str, others: Sequence[str]) -> object:
    """How matplotlib breaks the line of a scheme."""
    return _MATPLOTLIB[look_of(scheme, others).dash]
