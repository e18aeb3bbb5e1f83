"""What a call in Python is given, checked before anything runs: errors name argument, value and rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

from wayfare.errors import ScenarioError
from wayfare.methods import Recipe
from wayfare.scenario import Scenario, parse
from wayfare.scenario.section import Section


def checked_scenario(scenario: object) -> Scenario:
    """A scenario whose fields are valid; pydantic's `model_copy` does not look at them."""
    if not isinstance(scenario, Scenario):
        example = repr(scenario) if isinstance(scenario, str) else "'fashion-small'"
        raise ScenarioError("scenario", _short(scenario), f"must be a Scenario; `wayfare.load({example})` makes one")
    _refuse_unknown(scenario, "")
    return parse(scenario.model_dump(mode="json", warnings=False))


def checked_schemes(schemes: object) -> Sequence[Recipe] | None:
    """Several schemes, or none for those of the scenario."""
    if schemes is None:
        return None
    if isinstance(schemes, str):
        raise ScenarioError("schemes", schemes, f"must be a list, as in [{schemes!r}]")
    if isinstance(schemes, Mapping) or not isinstance(schemes, Sequence):
        raise ScenarioError("schemes", _short(schemes), "must be a list of names, upload rules or compositions")
    return schemes


def checked_seeds(seeds: object) -> list[int]:
    """The seeds of a study: 0, 1, ... for a number of them, or those of a list."""
    rule = "must be a whole number of seeds, or a list of them such as [1, 2, 3]"
    if _is_whole(seeds):
        if int(seeds) < 1:  # type: ignore[call-overload]
            raise ScenarioError("seeds", seeds, "must be at least 1")
        return list(range(int(seeds)))  # type: ignore[call-overload]
    if isinstance(seeds, str | Mapping) or not hasattr(seeds, "__iter__"):
        raise ScenarioError("seeds", _short(seeds), rule)
    found = [checked_seed(seed, "seeds") for seed in seeds]
    if not found:
        raise ScenarioError("seeds", [], "must be at least 1")
    if len(set(found)) < len(found):
        raise ScenarioError("seeds", found, "must not repeat")
    return found


def checked_seed(seed: object, name: str = "seed") -> int:
    if not _is_whole(seed):
        raise ScenarioError(name, _short(seed), "must be a whole number of 0 or more")
    if int(seed) < 0:  # type: ignore[call-overload]
        raise ScenarioError(name, seed, "must be 0 or more")
    return int(seed)  # type: ignore[call-overload,no-any-return]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _refuse_unknown(section: Section, path: str) -> None:
    known = type(section).model_fields
    for name, value in vars(section).items():
        if name not in known:
            raise ScenarioError(f"{path}{name}", _short(value), f"no such field; there are {', '.join(known)}")
        if isinstance(value, Section):
            _refuse_unknown(value, f"{path}{name}.")


def _short(value: object) -> object:
    """Objects whose text is long are told by their class."""
    return value if isinstance(value, str | int | float | list | tuple) or value is None else type(value).__name__
