"""Colours and dashes of schemes, the same in every table, curve, map and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Dash: TypeAlias = Literal["solid", "dash", "dot", "dashdot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    light: str
    dark: str
    dash: Dash


# Okabe and Ito's palette, which colour-blind readers can distinguish, and a violet: (light, dark theme). Black and
# yellow would be invisible in one of the themes.
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
# Curves that coincide stay visible, because ideal and paced schemes are dashed.
_DASHES: dict[str, Dash] = {"optimal": "dash", "afl-spar:paced": "dot"}
# A variant such as `afl:fitting` has the colour of its scheme and a dashed line.
_VARIANTS: tuple[Dash, ...] = ("dash", "dot", "dashdot")
# Further schemes repeat the colours of the palette with other dashes.
_ROUNDS: tuple[Dash, ...] = ("solid", "dashdot", "dash", "dot")
_MATPLOTLIB = {"solid": "-", "dash": (0, (5, 3)), "dot": (0, (1, 1.6)), "dashdot": (0, (5, 2, 1, 2))}

_MARKS: dict[Dash, str] = {"solid": "o", "dash": "o", "dot": "^", "dashdot": "s"}


def look_of(scheme: str, others: Sequence[str]) -> Look:
    """The look of a scheme: fixed for Wayfare's schemes, by order of appearance for others."""
    if scheme in _KNOWN:
        place, dash = _KNOWN.index(scheme), _DASHES.get(scheme, "solid")
    elif _base(scheme) in _KNOWN:
        place = _KNOWN.index(_base(scheme))
        variants = [name for name in others if name not in _KNOWN and _base(name) == _base(scheme)]
        dash = _VARIANTS[variants.index(scheme) % len(_VARIANTS)]
    else:
        taken = {_KNOWN.index(name if name in _KNOWN else _base(name)) for name in others if _base(name) in _KNOWN}
        # Unused colours come first, then all of them again.
        places = [*(place for place in range(len(_COLOURS)) if place not in taken), *range(len(_COLOURS))]
        number = [name for name in others if _base(name) not in _KNOWN].index(scheme)
        free = len(_COLOURS) - len(taken)
        place = places[number if number < len(places) else free + (number - free) % len(_COLOURS)]
        dash = _ROUNDS[0 if number < free else (1 + (number - free) // len(_COLOURS)) % len(_ROUNDS)]
    light, dark = _COLOURS[place % len(_COLOURS)]
    return Look(light=light, dark=dark, dash=dash)


def _base(scheme: str) -> str:
    """``afl:fitting`` is a variant of ``afl``."""
    return scheme.split(":")[0]


def colour_of(scheme: str, others: Sequence[str]) -> str:
    return look_of(scheme, others).light


def height_of(scheme: str, others: Sequence[str]) -> float:
    """The z-order of a scheme's line: dashed lines are on top, so that solid ones do not hide them."""
    return 2.0 if look_of(scheme, others).dash == "solid" else 2.5


def mark_of(scheme: str, others: Sequence[str]) -> dict[str, str]:
    """The marker of a scheme, which distinguishes variants in plots without lines."""
    look = look_of(scheme, others)
    return {"marker": _MARKS[look.dash], "mfc": look.light if look.dash == "solid" else "white"}


def dashes_of(scheme: str, others: Sequence[str]) -> object:
    return _MATPLOTLIB[look_of(scheme, others).dash]
