"""Scenarios from presets, TOML files and dotted overrides.

A file may begin with ``extends = "fashion-small"`` (a preset, or another file in the same folder) and then contains
only the differences.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from wayfare.errors import InputError, ScenarioError
from wayfare.scenario.model import Scenario
from wayfare.scenario.unused import reject_unused, undecided

DEFAULT_PRESET = "fashion-small"
# For devices with their own networks and data.
FIELD_PRESET = "field"
_PRESETS = files("wayfare.scenario") / "presets"


def preset_names() -> list[str]:
    """The presets inside the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def load(source: str | Path = DEFAULT_PRESET, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a preset name or a TOML file, with overrides such as ``radio.bandwidth_hz=2e6``."""
    if isinstance(overrides, str | Mapping):
        raise ScenarioError("overrides", overrides, 'must be a list such as ["rounds=40"]')
    layers = _layers(str(source), seen=())
    given = dict(leaves(table_of(overrides)))
    data: dict[str, Any] = reduce(merge, layers, {})
    for override in overrides:
        _apply(data, override)
    # Make paths absolute, so that a stored scenario means the same in every folder.
    anchor_files(data, Path.cwd())
    try:
        scenario = parse(data)
        reject_unused(given, [scenario])
        if str(source) not in preset_names():
            written = dict(leaves(layers[-1]))
            reject_unused(undecided(written, {*written, *given}), [scenario])
        return scenario
    except ScenarioError as error:
        if str(source) in preset_names() or error.field in given:
            raise
        raise ScenarioError(error.field, error.value, f"{error.rule} (in {source})") from None


def load_table(source: str | Path) -> dict[str, Any]:
    """The table of a preset or TOML file, merged with the files it extends, not validated yet."""
    return reduce(merge, _layers(str(source), seen=()), {})


def with_overrides(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """A scenario with some of its fields changed."""
    data = scenario.model_dump(mode="json")
    for override in overrides:
        _apply(data, override)
    return parse(data)


def table_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Overrides as a nested table."""
    data: dict[str, Any] = {}
    for override in overrides:
        _apply(data, override)
    return data


def parse(data: dict[str, Any]) -> Scenario:
    """Validate a nested table; the error names the first invalid field."""
    try:
        # Through JSON, because strict validation of JSON still turns arrays into tuples.
        return Scenario.model_validate_json(json.dumps(data, default=date_as_text))
    except ValidationError as error:
        raise first_problem(error, Scenario) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the scenario contains a value that is not a number, text, list or table: {error}") from None


def date_as_text(value: object) -> str:
    """Turn a TOML date into text, so that the validation rejects it under the name of its field."""
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"{value!r}")


def _layers(source: str, seen: tuple[str, ...]) -> list[dict[str, Any]]:
    """The tables of an ``extends`` chain; each overrides the ones before it, which it extends."""
    try:
        text, key, folder = _text(source)
    except ScenarioError as error:
        raise ScenarioError("extends", source, f"{error.rule} (in {seen[-1]})") if seen else error from None
    if key in seen:
        raise ScenarioError("extends", source, "extends itself: " + " -> ".join((*seen, key)))
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not a TOML file: {error}") from None
    if folder is not None:
        anchor_files(data, folder)
    base = data.pop("extends", None)
    if base is None:
        return [data]
    if not isinstance(base, str):
        raise ScenarioError("extends", base, "must be the name of a preset or a file")
    if folder is not None and base not in preset_names():
        base = str(folder / base)
    return [*_layers(base, (*seen, key)), data]


# Fields that name a file or a folder.
_PATHS = (("mobility", "file"), ("learning", "argoverse", "folder"), ("learning", "argoverse", "map_folder"))
# Fields with a name that may contain a file.
_NAMES = (("learning", "task"), ("learning", "backbone"))


def names_python_file(text: str) -> bool:
    """Whether a name refers to a Python file, or to an object in it: ``mine.py:Patient``."""
    file, _, name = text.rpartition(".py")
    return bool(file) and (not name or name.startswith(":"))


def anchor_files(data: dict[str, Any], folder: Path) -> None:
    """Make the paths in a scenario relative to the scenario file, not to the current folder."""
    for path in (*_PATHS, *_NAMES):
        *sections, field = path
        table: Any = data
        for section in sections:
            table = table.get(section) if isinstance(table, dict) else None
        named = table.get(field) if isinstance(table, dict) else None
        if not isinstance(named, str):
            continue
        library, at, weights = named.partition("@")
        if path in _PATHS or names_python_file(named):
            table[field] = str(folder / named)
        elif field == "backbone" and at:
            table[field] = f"{library}@{folder / weights}"


def _text(source: str) -> tuple[str, str, Path | None]:
    """The TOML text, a unique key of its source, and its folder."""
    if source in preset_names():
        return (_PRESETS / f"{source}.toml").read_text(encoding="utf-8"), source, None
    path = Path(source)
    try:
        # Some editors write a byte order mark.
        return path.read_text(encoding="utf-8-sig"), str(path.resolve()), path.parent
    except (OSError, UnicodeDecodeError, ValueError) as error:
        known = ", ".join(preset_names())
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError("scenario", source, f"neither a preset ({known}) nor a readable file: {reason}") from None


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge ``over`` into ``base``; a table with another ``model`` or ``kind`` replaces the one in ``base``."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and not _changes_kind(below, value):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted fields and their values, for any nesting in the file."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def _changes_kind(base: dict[str, Any], over: dict[str, Any]) -> bool:
    return any(key in over and over[key] != base.get(key) for key in ("model", "kind"))


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one dotted key in place."""
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ScenarioError("override", override, "must be written as section.field=value")
    table: dict[str, Any] = {}
    inner = table
    for key in keys[:-1]:
        inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = _value(text.strip())
    merged = merge(data, table)
    data.clear()
    data.update(merged)


def _value(text: str) -> Any:
    """Parse a TOML value. Anything else is text, so that quotes are optional on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def first_problem(error: ValidationError, root: type[BaseModel]) -> ScenarioError:
    """The first validation error, with field, value and rule."""
    problem = error.errors(include_url=False)[0]
    path, section, tag_key, kinds = _walk(problem["loc"], root)
    field, value, context = ".".join(path) or root.__name__.lower(), problem["input"], problem.get("ctx", {})
    rule = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "extra_forbidden":
            fields = section.model_fields.items() if section else ()
            names = ", ".join(info.alias or name for name, info in fields)
            known = f"; known keys: {names}" if names else ""
            return ScenarioError(field, value, f"unknown key{known}")
        case "union_tag_invalid":
            tags = context["expected_tags"].replace("'", "")
            return ScenarioError(f"{field}.{tag_key}", context["tag"], f"must be one of {tags}")
        case "missing":
            return ScenarioError(field, None, "is required")
        case "union_tag_not_found":
            return ScenarioError(f"{field}.{tag_key}", None, f"is required: one of {', '.join(kinds)}")
    return ScenarioError(field, "{...}" if isinstance(value, dict) else value, rule[0].lower() + rule[1:])


def _walk(
    location: tuple[int | str, ...], root: type[BaseModel]
) -> tuple[list[str], type[BaseModel] | None, str | None, list[str]]:
    """The path as the user wrote it, the section it leads to, and the key and values that select its kind.

    Pydantic's location also contains the tag of every union on the way, which is not part of the path.
    """
    path: list[str] = []
    section: type[BaseModel] | None = root
    kinds: dict[str, type[BaseModel]] = {}
    tag_key: str | None = None
    for part in location:
        if part in kinds:
            section, kinds = kinds[str(part)], {}
            continue
        path.append(str(part))
        info = section.model_fields.get(str(part)) if section else None
        if info is None:
            continue
        section, tag_key, kinds = None, None, {}
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            section = info.annotation
        elif isinstance(info.discriminator, str):
            tag_key = info.discriminator
            kinds = {variant.model_fields[tag_key].default: variant for variant in get_args(info.annotation)}
    return path, section, tag_key, list(kinds)
