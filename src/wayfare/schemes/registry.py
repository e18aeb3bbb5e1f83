"""Schemes by name: ours, and those that other packages offer as entry points of the group ``wayfare.schemes``.

A name may carry an energy rule, as in ``afl-spar:paced``; that of FedAsync also how a model's weight falls with its
age, as in ``fedasync:hinge`` or ``fedasync:hinge:paced``, and that of MADS-RD how far it goes: ``mads-rd:index``.
A name may also be a file and a class in it: ``mine.py:Patient``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast, get_args

from wayfare.errors import ScenarioError
from wayfare.scenario.exchange import Mixing
from wayfare.scenario.model import Control
from wayfare.schemes.afl import Afl
from wayfare.schemes.afl_spar import AflSpar
from wayfare.schemes.base import EnergyRule, Scheme
from wayfare.schemes.fedasync import FedAsync, StalenessFunction
from wayfare.schemes.fedmobile import FedMobile
from wayfare.schemes.from_file import class_from_file, is_file
from wayfare.schemes.mads import Mads
from wayfare.schemes.mads_rd import MadsRd, Step
from wayfare.schemes.optimal import Optimal
from wayfare.schemes.sfl_spar import SflSpar

SCHEMES: Mapping[str, type[Any]] = {
    "mads": Mads,
    "mads-rd": MadsRd,
    "optimal": Optimal,
    "afl-spar": AflSpar,
    "afl": Afl,
    "fedmobile": FedMobile,
    "fedasync": FedAsync,
    "sfl-spar": SflSpar,
}
RULES: tuple[EnergyRule, ...] = ("greedy", "paced", "unlimited")
"""The energy rules that can be chosen, and the schemes that take them; the first is the default."""
RULED = frozenset({"afl-spar", "afl", "fedmobile", "fedasync", "sfl-spar"})

GROUP = "wayfare.schemes"

# Schemes from files, by their names: a study knows its schemes by name.
_FROM_FILES: dict[str, Callable[[], object]] = {}

_STEPS: tuple[Step, ...] = get_args(Step)

_Choice = TypeVar("_Choice", bound=str)


def make_scheme(text: str, control: Control, mixing: Mixing | None = None) -> Scheme:
    """The scheme of a name, with the energy rule and the other choices that the name carries."""
    if is_file(text):
        return _from_file(text)
    if text in _FROM_FILES:
        return checked(_FROM_FILES[text]())
    name, *chosen = text.split(":")
    if name == "mads-rd":
        step = _choice(text, chosen, _STEPS)
        return MadsRd(control, _full_name(name, step, _STEPS), step=step)
    if chosen and name not in RULED:
        raise ScenarioError("schemes", text, f"only {', '.join(sorted(RULED))} take a rule, {_one_of(RULES)}")
    if name == "fedasync":
        return _fedasync(text, chosen, mixing or Mixing())
    if name in RULED:
        rule = _choice(text, chosen, RULES)
        return cast(Scheme, SCHEMES[name](rule, name=_full_name(name, rule, RULES)))
    if name == "mads":
        return Mads(control)
    if name in SCHEMES:
        return cast(Scheme, SCHEMES[name]())
    offered = _offered()
    if name in offered:
        return checked(offered[name]())
    known = ", ".join([*SCHEMES, *sorted(offered)])
    raise ScenarioError("schemes", text, f"unknown; known are {known}; one of your own is given as FILE.py:CLASS")


def _from_file(text: str) -> Scheme:
    own = class_from_file(text)
    try:
        scheme = checked(own())
    except TypeError as error:
        raise ScenarioError("schemes", text, f"must be made without arguments: {error}") from None
    if scheme.name.split(":")[0] in SCHEMES:
        raise ScenarioError("schemes", text, f"its name {scheme.name!r} is that of one of Wayfare's schemes")
    _FROM_FILES[scheme.name] = own
    return scheme


def _fedasync(text: str, chosen: list[str], mixing: Mixing) -> Scheme:
    functions: tuple[StalenessFunction, ...] = get_args(StalenessFunction)
    function = _choice(text, [choice for choice in chosen if choice not in RULES], functions, RULES)
    rule = _choice(text, [choice for choice in chosen if choice in RULES], RULES)
    name = _full_name(_full_name("fedasync", function, functions), rule, RULES)
    return FedAsync(rule, name, function, mixing)


def _choice(text: str, chosen: list[str], known: tuple[_Choice, ...], others: tuple[str, ...] = ()) -> _Choice:
    """The one of the known choices that a name carries; the first when it carries none."""
    if not chosen:
        return known[0]
    for choice in known:
        if chosen == [choice]:
            return choice
    raise ScenarioError("schemes", text, f"takes {_one_of(known)}" + (f", and {_one_of(others)}" if others else ""))


def _full_name(name: str, choice: str, known: tuple[str, ...]) -> str:
    """A default is not written out: one scheme has one name."""
    return name if choice == known[0] else f"{name}:{choice}"


def _one_of(known: tuple[str, ...]) -> str:
    return "one of " + ", ".join(f":{choice}" for choice in known)


def checked(scheme: object) -> Scheme:
    """Refuse what does not look like a scheme, before a run begins."""
    name = getattr(scheme, "name", None)
    if not isinstance(name, str) or not name:
        raise ScenarioError("schemes", type(scheme).__name__, "a scheme needs a `name`")
    if not callable(getattr(scheme, "decide", None)):
        raise ScenarioError("schemes", name, "a scheme needs a method `decide(encounter, link)`")
    return cast(Scheme, scheme)


def descriptions() -> dict[str, str]:
    """One line for every known scheme."""
    known: dict[str, Any] = {**SCHEMES, **_offered()}
    return {name: (scheme.__doc__ or "").strip().split("\n")[0] for name, scheme in known.items()}


def _offered() -> dict[str, Callable[[], object]]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP) if entry.name not in SCHEMES}
