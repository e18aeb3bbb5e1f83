"""Checks of arguments in Python calls, before anything runs; errors name argument, value and rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

from wayfare.errors import ScenarioError
from wayfare.learning.tasks import Task
from wayfare.methods import Recipe
from wayfare.scenario import Scenario, parse
from wayfare.scenario.section import Section


def checked_scenario(scenario: object) -> Scenario:
    """A validated scenario; pydantic's `model_copy` does not validate."""
    if not isinstance(scenario, Scenario):
        example = repr(scenario) if isinstance(scenario, str) else "'fashion-small'"
        raise ScenarioError("scenario", _short(scenario), f"must be a Scenario, such as `wayfare.load({example})`")
    _reject_unknown(scenario, "")
    return parse(scenario.model_dump(mode="json", warnings=False))


def checked_task(task: object) -> Task:
    if isinstance(task, Task):
        return task
    rule = "must be a task, as built by `wayfare.own_task`"
    if isinstance(task, str):
        rule += f"; name other tasks in the scenario, as in `wayfare.load('fashion-small', ['learning.task={task}'])`"
    raise ScenarioError("task", _short(task), rule)


def checked_schemes(schemes: object) -> Sequence[Recipe] | None:
    """A list of schemes, or None for the schemes of the scenario."""
    if schemes is None:
        return None
    if isinstance(schemes, str):
        raise ScenarioError("schemes", schemes, f"must be a list, as in [{schemes!r}]")
    if isinstance(schemes, Mapping) or not isinstance(schemes, Sequence):
        raise ScenarioError("schemes", _short(schemes), "must be a list of names, upload rules or compositions")
    return schemes


def checked_seeds(seeds: object) -> list[int]:
    """The seeds of a study: 0, 1, ... for a number, or the entries of a list."""
    rule = "must be a number of seeds, or a list of seeds such as [1, 2, 3]"
    if _is_integer(seeds):
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
    if not _is_integer(seed):
        raise ScenarioError(name, _short(seed), "must be an integer of at least 0")
    if int(seed) < 0:  # type: ignore[call-overload]
        raise ScenarioError(name, seed, "must be at least 0")
    return int(seed)  # type: ignore[call-overload,no-any-return]


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _reject_unknown(section: Section, path: str) -> None:
    known = type(section).model_fields
    for name, value in vars(section).items():
        if name not in known:
            raise ScenarioError(f"{path}{name}", _short(value), f"no such field; known fields: {', '.join(known)}")
        if isinstance(value, Section):
            _reject_unknown(value, f"{path}{name}.")


def _short(value: object) -> object:
    """The class name of objects with a long text."""
    return value if isinstance(value, str | int | float | list | tuple) or value is None else type(value).__name__
