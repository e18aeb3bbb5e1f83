"""Schemes by name: ours, and those that other packages offer as entry points of the group ``wayfare.schemes``.

A name may carry choices, in any order: an energy rule (``afl-spar:paced``), ``:fitting`` for schemes that send whole
models (``afl:fitting:paced``), how FedAsync's weights fall with age (``fedasync:hinge``), who pays for FedMobile's
relays (``fedmobile:billed``), how far MADS-RD goes (``mads-rd:index``).
A name may also be a file and a class in it: ``mine.py:Patient``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, cast, get_args

from wayfare.errors import ScenarioError
from wayfare.scenario import Scenario
from wayfare.schemes.afl import Afl
from wayfare.schemes.afl_spar import AflSpar
from wayfare.schemes.base import EnergyRule, Scheme
from wayfare.schemes.fedasync import FedAsync, StalenessFunction
from wayfare.schemes.fedmobile import BILLED, FedMobile
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
"""The energy rules that can be chosen; the first is the default."""

# What a name may carry, each choice from one group, in the order in which a name has them; the first of a group is the
# default and is not written out.
_FITTING = ("", "fitting")
_CHOICES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "mads-rd": (get_args(Step),),
    "afl-spar": (RULES,),
    "sfl-spar": (RULES,),
    "afl": (_FITTING, RULES),
    "fedasync": (get_args(StalenessFunction), _FITTING, RULES),
    "fedmobile": (("", "billed"), _FITTING, RULES),
}

GROUP = "wayfare.schemes"

# Schemes from files, by their names: a study knows its schemes by name.
_FROM_FILES: dict[str, Callable[[], object]] = {}


def make_scheme(text: str, scenario: Scenario) -> Scheme:
    """The scheme of a name, with the energy rule and the other choices that the name carries."""
    if is_file(text):
        return _from_file(text)
    if text in _FROM_FILES:
        return checked(_FROM_FILES[text]())
    base, *chosen = text.split(":")
    if base in SCHEMES:
        picked = _pick(text, chosen, _CHOICES.get(base, ()))
        return _ours(base, picked, scenario)
    offered = _offered()
    if text in offered:
        return checked(offered[text]())
    known = ", ".join([*SCHEMES, *sorted(offered)])
    raise ScenarioError("schemes", text, f"unknown; known are {known}; one of your own is given as FILE.py:CLASS")


def _ours(base: str, picked: list[str], scenario: Scenario) -> Scheme:
    groups = _CHOICES.get(base, ())
    name = ":".join([base, *(choice for choice, group in zip(picked, groups, strict=True) if choice != group[0])])
    match base, picked:
        case "mads", _:
            return Mads(scenario.control)
        case "mads-rd", [step]:
            return MadsRd(scenario.control, name, step=cast(Step, step))
        case "afl", [fitting, rule]:
            return Afl(name, cast(EnergyRule, rule), bool(fitting))
        case "fedasync", [staleness, fitting, rule]:
            function = cast(StalenessFunction, staleness)
            return FedAsync(name, cast(EnergyRule, rule), bool(fitting), function, scenario.mixing)
        case "fedmobile", [billed, fitting, rule]:
            relays = scenario.relays.model_copy(update=BILLED) if billed else True
            return FedMobile(name, cast(EnergyRule, rule), bool(fitting), relays)
        case _, [rule]:
            return cast(Scheme, SCHEMES[base](rule, name=name))
        case _:
            return cast(Scheme, SCHEMES[base]())


def _pick(text: str, chosen: list[str], groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """One choice of each group: the one that a name carries, or the first."""
    picked = [group[0] for group in groups]
    taken: set[int] = set()
    for choice in chosen:
        place = next((number for number, group in enumerate(groups) if choice and choice in group), None)
        if place is None or place in taken:
            rule = "; ".join(f"one of {_listed(group)}" if len(group) > 2 else _listed(group) for group in groups)
            raise ScenarioError("schemes", text, f"takes {rule}" if groups else "takes nothing after its name")
        taken.add(place)
        picked[place] = choice
    return picked


def _listed(group: tuple[str, ...]) -> str:
    return ", ".join(f":{choice}" for choice in group if choice)


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


def checked(scheme: object) -> Scheme:
    """Refuse what does not look like a scheme, before a run begins."""
    name = getattr(scheme, "name", None)
    if not isinstance(name, str) or not name:
        raise ScenarioError("schemes", type(scheme).__name__, "a scheme needs a `name`")
    if not callable(getattr(scheme, "decide", None)):
        raise ScenarioError("schemes", name, "a scheme needs a method `decide(encounter, link)`")
    return cast(Scheme, scheme)


def choices_of(name: str) -> list[list[str]]:
    """What may follow a scheme's name: one choice of each group."""
    return [[choice for choice in group if choice] for group in _CHOICES.get(name, ())]


def descriptions() -> dict[str, str]:
    """One line for every known scheme."""
    known: dict[str, Any] = {**SCHEMES, **_offered()}
    return {name: (scheme.__doc__ or "").strip().split("\n")[0] for name, scheme in known.items()}


def _offered() -> dict[str, Callable[[], object]]:
    return {entry.name: entry.load() for entry in entry_points(group=GROUP) if entry.name not in SCHEMES}
