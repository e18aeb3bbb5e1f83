"""Schemes by name: ours, and those that other packages offer as entry points of the group ``wayfare.schemes``.

A name may carry an energy rule, as in ``afl-spar:paced``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, cast, get_args

from wayfare.errors import ScenarioError
from wayfare.scenario.model import Control
from wayfare.schemes.afl import Afl
from wayfare.schemes.afl_spar import AflSpar
from wayfare.schemes.base import EnergyRule, Scheme
from wayfare.schemes.mads import Mads
from wayfare.schemes.optimal import Optimal
from wayfare.schemes.sfl_spar import SflSpar

SCHEMES: Mapping[str, type[Any]] = {
    "mads": Mads,
    "optimal": Optimal,
    "afl-spar": AflSpar,
    "afl": Afl,
    "sfl-spar": SflSpar,
}
RULED = frozenset({"afl-spar", "afl", "sfl-spar"})
"""The schemes whose energy rule can be chosen."""

GROUP = "wayfare.schemes"


def make_scheme(text: str, control: Control) -> Scheme:
    """The scheme of a name, with its energy rule if the name carries one."""
    name, colon, rule = text.partition(":")
    if colon and (name not in RULED or rule not in get_args(EnergyRule) or rule == "queue"):
        known = ", ".join(sorted(RULED))
        raise ScenarioError("schemes", text, f"only {known} take a rule, one of :greedy, :paced, :unlimited")
    if name in RULED:
        default = SCHEMES[name]()
        return cast(Scheme, SCHEMES[name](rule, name=text)) if colon and rule != default.energy_rule else default
    if name == "mads":
        return Mads(control)
    if name in SCHEMES:
        return cast(Scheme, SCHEMES[name]())
    offered = _offered()
    if name in offered:
        return checked(offered[name]())
    raise ScenarioError("schemes", text, f"unknown; known are {', '.join([*SCHEMES, *sorted(offered)])}")


def checked(scheme: object) -> Scheme:
    """Refuse what does not look like a scheme, before a run begins."""
    name = getattr(scheme, "name", None)
    if not isinstance(name, str) or not name:
        raise ScenarioError("schemes", scheme, "a scheme needs a `name`")
    if not callable(getattr(scheme, "decide", None)):
        raise ScenarioError("schemes", name, "a scheme needs a method `decide(encounter, link)`")
    return cast(Scheme, scheme)


def descriptions() -> dict[str, str]:
    """One line for every known scheme."""
    known: dict[str, Any] = {**SCHEMES, **_offered()}
    return {name: (scheme.__doc__ or "").strip().split("\n")[0] for name, scheme in known.items()}


def _offered() -> dict[str, Callable[[], object]]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP) if entry.name not in SCHEMES}
