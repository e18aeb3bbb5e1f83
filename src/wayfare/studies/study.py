"""Studies: a base scenario, varied settings, schemes and seeds, as a TOML file.

::

    name = "speeds"
    scenario = "fashion-small"           # a preset, or a scenario file in the same folder
    schemes = ["mads", "afl-spar:paced"]
    seeds = 5                            # or a list of seeds
    targets = ["60 %"]                   # report rounds, time and energy to reach this score

    [set]                                # common to all runs
    rounds = 500

    [grid]                               # every combination
    mobility.speed_mps = [5, 10, 20]

    [[paired]]                           # values that change together, one table per point
    label = "small"                      # optional name of the point
    fleet = { devices = 10, energy_total_joules = 250 }
    [[paired]]
    label = "large"
    fleet = { devices = 20, energy_total_joules = 500 }
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from wayfare.errors import InputError, ScenarioError
from wayfare.learning.known import KNOWN
from wayfare.learning.tasks import Task
from wayfare.methods import Method, Recipe, make_method
from wayfare.scenario import DEFAULT_PRESET, Scenario, parse, preset_names
from wayfare.scenario.load import anchor_files, date_as_text, first_problem, leaves, load_table, merge
from wayfare.scenario.section import Section
from wayfare.scenario.unused import reject_unused
from wayfare.studies.arguments import checked_scenario, checked_schemes, checked_seeds
from wayfare.studies.single import naming_task, scenario_name_of
from wayfare.studies.source import study_text

USUAL_METRICS = ("score", "energy_joules", "kept_fraction")
"""The default columns of a study's table."""

_NOT_IN_A_GRID = {"schemes": "set the schemes with `schemes`", "name": "cannot vary: a study has one name"}


class Study(Section):
    """The fields of a study file."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
    title: str = ""
    scenario: Annotated[str, Field(min_length=1)] = DEFAULT_PRESET
    settings: Annotated[dict[str, Any], Field(alias="set", default_factory=dict)]
    grid: Annotated[dict[str, Any], Field(default_factory=dict)]
    paired: tuple[dict[str, Any], ...] = ()
    # Default: the schemes of the scenario.
    schemes: tuple[str, ...] | None = None
    seeds: Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=0)], ...] = 3
    # Columns of the table; `score` is the task's metric.
    metrics: tuple[str, ...] = USUAL_METRICS
    # Scores to reach, as numbers or as "60 %".
    targets: tuple[float, ...] = ()

    @field_validator("targets", mode="before")
    @classmethod
    def _per_cent(cls, targets: object) -> object:
        return tuple(_target(target) for target in targets) if isinstance(targets, list) else targets

    @field_validator("metrics", "targets")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("must not repeat")
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of the varied settings: dotted fields with their values, and the resulting scenario."""

    values: Mapping[str, Any]
    scenario: Scenario
    label: str = ""  # name of its paired values


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An expanded study: its points, and the schemes and seeds that run at each of them."""

    study: Study
    folder_name: str
    axes: list[str]  # the fields that vary
    labelled: list[str]  # the axes that labels replace
    points: list[Point]
    schemes: list[str]
    seeds: list[int]
    recipes: Mapping[str, Recipe]  # how to build each scheme
    task: Task | None  # replaces the task of the scenarios

    def scheme_at(self, point: Point, name: str) -> Method:
        return make_method(self.recipes.get(name, name), point.scenario)


def load_study(source: str | Path) -> Plan:
    """The study of a preset name or a TOML file; the scenario of every point is validated."""
    text, folder = study_text(str(source))
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not a TOML file: {error}") from None
    if folder is not None:
        data.setdefault("name", Path(source).stem)
    return _plan(_validated(data), folder)


def plan_of(table: dict[str, Any]) -> Plan:
    return _plan(_validated(table), None)


def comparison_plan(
    scenario: Scenario,
    schemes: Sequence[Recipe] | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    task: Task | None = None,
) -> Plan:
    """The study of one point that compares schemes on a scenario. ``task`` replaces the scenario's task."""
    scenario = naming_task(checked_scenario(scenario), task)
    study, point = _validated({"name": scenario.name}), Point(values={}, scenario=scenario)
    return drawn_out(study, [point], checked_schemes(schemes), seeds, folder_name=scenario_name_of(scenario), task=task)


def _validated(data: dict[str, Any]) -> Study:
    try:
        return Study.model_validate_json(json.dumps(data, default=date_as_text))
    except ValidationError as error:
        raise first_problem(error, Study) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the study contains a value that is not a number, text, list or table: {error}") from None


def _plan(study: Study, folder: Path | None) -> Plan:
    base = study.scenario
    if folder is not None and base not in preset_names():
        base = str(folder / base)
    table = merge(load_table(base), _anchored(study.settings, folder))
    grid, (labels, paired) = _grid(study.grid), _paired(study.paired)
    axes = [*grid, *(paired[0] if paired else ())]
    for axis in axes:
        _check_axis(axis, [*grid], axes)
    points = []
    for values, label in _combinations(grid, paired, labels):
        over: dict[str, Any] = {}
        for axis, value in values.items():
            over = merge(over, _nested(axis, value))
        points.append(Point(values=values, scenario=parse(merge(table, _anchored(over, folder))), label=label))
    together = {field: [values[field] for values in paired] for field in (paired[0] if paired else ())}
    reject_unused(dict(leaves(study.settings)) | grid | together, [point.scenario for point in points])
    _check_points(points)
    _check_targets(study.targets, points)
    labelled = [*paired[0]] if any(labels) else []
    return drawn_out(study, points, study.schemes, study.seeds, axes=axes, labelled=labelled)


def drawn_out(
    study: Study,
    points: Sequence[Point],
    schemes: Sequence[Recipe] | None,
    seeds: int | Sequence[int],
    *,
    folder_name: str | None = None,
    axes: Sequence[str] = (),
    labelled: Sequence[str] = (),
    task: Task | None = None,
) -> Plan:
    """The plan of a study, with schemes and seeds checked at every point. The default is the scenario's schemes."""
    first = points[0].scenario
    given = first.schemes if schemes is None else schemes
    names = [make_method(recipe, first).name for recipe in given]
    plan = Plan(
        study=study,
        folder_name=folder_name or study.name,
        axes=list(axes),
        labelled=list(labelled),
        points=list(points),
        schemes=names,
        seeds=checked_seeds(seeds),
        recipes=dict(zip(names, given, strict=True)),
        task=task,
    )
    if not plan.schemes:
        raise ScenarioError("schemes", [], "must name at least one scheme")
    for name in plan.schemes:
        if plan.schemes.count(name) > 1:
            raise ScenarioError("schemes", name, "must not be listed twice")
    for point in points:
        for name in plan.schemes:
            plan.scheme_at(point, name)
    return plan


def _anchored(table: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Make paths relative to the folder of the study."""
    if folder is not None:
        anchor_files(table, folder)
    return table


def _grid(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    grid = dict(leaves(table))
    for field, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ScenarioError(f"grid.{field}", values, "must be a list with at least one value")
        _check_repeats(f"grid.{field}", values)
    return grid


def _paired(tables: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    paired = [dict(leaves(table)) for table in tables]
    labels = [values.pop("label", "") for values in paired]
    for index, label in enumerate(labels):
        if not isinstance(label, str) or bool(label) != bool(labels[0]):
            raise ScenarioError(
                f"paired.{index}.label", label, "must be a string; either all paired tables have a label or none"
            )
    for index, values in enumerate(paired):
        if not values or values.keys() != paired[0].keys():
            fields = ", ".join(paired[0]) or "at least one"
            raise ScenarioError(f"paired.{index}", list(values), f"must set the same fields as the first: {fields}")
    _check_repeats("paired", paired)
    _check_repeats("paired.label", [label for label in labels if label])
    return labels, paired


def _nested(field: str, value: Any) -> dict[str, Any]:
    for key in reversed(field.split(".")):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _combinations(
    grid: Mapping[str, Sequence[Any]], paired: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> Iterator[tuple[dict[str, Any], str]]:
    """All points: the first field changes slowest, and paired values with their label change fastest."""
    for values in itertools.product(*grid.values()):
        for together, label in zip(paired or ({},), labels or ("",), strict=True):
            yield dict(zip(grid, values, strict=True)) | dict(together), label


def _check_axis(axis: str, grid: Sequence[str], axes: Sequence[str]) -> None:
    where = "grid" if axis in grid else "paired"
    if axis in _NOT_IN_A_GRID:
        raise ScenarioError(f"{where}.{axis}", "...", _NOT_IN_A_GRID[axis])
    if axes.count(axis) > 1:
        raise ScenarioError(f"paired.{axis}", "...", "is already in the grid")


def _check_repeats(field: str, values: Sequence[Any]) -> None:
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    for value, text in zip(values, texts, strict=True):
        if texts.count(text) > 1:
            raise ScenarioError(field, value, "must not be listed twice")


def _check_points(points: Sequence[Point]) -> None:
    """Reject points with the same scenario: values that look different may be equal."""
    seen: dict[Scenario, Point] = {}
    for point in points:
        other = seen.setdefault(point.scenario, point)
        if other is not point:
            raise ScenarioError("grid", dict(point.values), f"gives the same scenario as {dict(other.values)}")


def _check_targets(targets: Sequence[float], points: Sequence[Point]) -> None:
    """Reject an accuracy above 1: a user who writes 60 means 60 %."""
    classifies = any(KNOWN[task].classifies for point in points if (task := point.scenario.learning.task) in KNOWN)
    for target in targets if classifies else ():
        if not 0 < target <= 1:
            rule = f'must be an accuracy above 0 and at most 1, or in per cent: "{target:g} %"'
            raise ScenarioError("targets", target, rule)


def _target(target: object) -> object:
    """A share, written as per cent."""
    if not isinstance(target, str):
        return target
    try:
        number = target.strip()
        return float(number.removesuffix("%")) / 100 if number.endswith("%") else float(number)
    except ValueError:
        return target
