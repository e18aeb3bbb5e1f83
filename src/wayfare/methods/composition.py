"""Compose methods in Python, in a scenario or study, and on the command line.

mads                                  a named method
afl-spar:paced + random-k             replace one part
mine = afl + buffer(size=5)           replace a part, set its values, name the result
mine.py:Patient                       your own upload rule or composition from a file
mads + mine.py:Sketch(width=100)      your own part
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

from wayfare.errors import ScenarioError
from wayfare.methods.from_file import from_file
from wayfare.methods.parts import Method, Part, UploadRule
from wayfare.methods.registry import PARTS, TABLE, assemble, checked_part, named_parts, part_class
from wayfare.scenario import Scenario
from wayfare.scenario.load import names_python_file

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._:-]*)\s*=(?!=)(.+)", re.DOTALL)
_PART = re.compile(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", re.DOTALL)
# The text of each composition by its name: studies refer to methods by name.
_KNOWN: dict[str, str] = {}


@dataclass(frozen=True)
class Composition:
    """A base method, the parts that replace parts of the base, and a name for the result."""

    name: str
    base: str
    parts: tuple[Part, ...] = ()


Recipe: TypeAlias = str | Composition | UploadRule | Method
"""Anything that `make_method` accepts."""


def compose(name: str, base: str, *parts: Part) -> Composition:
    """Your own method: ``compose("mine", "afl-spar:paced", Buffer(size=5), MyMemory())``."""
    return Composition(name, base, tuple(checked_part(part, name) for part in parts))


def make_method(recipe: Recipe, scenario: Scenario) -> Method:
    if isinstance(recipe, Method):
        return recipe
    if isinstance(recipe, str):
        return _from_text(_KNOWN.get(recipe.strip(), recipe), scenario)
    if isinstance(recipe, Composition):
        _, parts = named_parts(recipe.base, scenario)
        return assemble(_own_name(recipe.name), (*parts, *recipe.parts), scenario, "")
    if isinstance(recipe, UploadRule):
        return assemble(_own_name(recipe.name, type(recipe).__name__), (recipe,), scenario, "")
    rule = "is not a method: give a name, an UploadRule or the result of `compose`"
    raise ScenarioError("schemes", type(recipe).__name__, rule)


def _from_text(text: str, scenario: Scenario) -> Method:
    found = _NAME.fullmatch(text)
    given, body = (found[1], found[2]) if found else (None, text)
    first, *others = (piece.strip() for piece in _split(body, "+"))
    name, parts = _begin(first, scenario)
    for piece in others:
        parts = (*parts, _part(piece, text, parts))
    if given is not None:
        name = _own_name(given)
    elif others:
        name = " + ".join([name, *others])
    written = text.strip()
    if given is not None or names_python_file(first):
        _KNOWN[name] = written
    return assemble(name, parts, scenario, written)


def _begin(text: str, scenario: Scenario) -> tuple[str, tuple[Part, ...]]:
    """The first piece of a composition: a named method, a named upload rule, or your own from a file."""
    if text in PARTS and text not in TABLE:
        return text, (_part(text, text),)
    if not names_python_file(text):
        return named_parts(text, scenario)
    found = from_file(text)
    if isinstance(found, Composition):
        method = make_method(found, scenario)
        return method.name, tuple(method.parts.values())
    part = _made(found, {}, text)
    if not isinstance(part, UploadRule):
        raise ScenarioError("schemes", text, "a method starts with an upload rule; write mads + FILE.py:CLASS instead")
    return _own_name(part.name, type(part).__name__), (part,)


def _part(text: str, whole: str, before: tuple[Part, ...] = ()) -> Part:
    found = _PART.fullmatch(text)
    if found is None:
        raise ScenarioError("schemes", whole, f"cannot parse {text!r}; expected a part such as buffer(size=5)")
    name, values = found[1], found[2] or ""
    if names_python_file(name):
        return _made(from_file(name), _values(values, whole), whole, before)
    if name not in PARTS:
        known = ", ".join(PARTS)
        raise ScenarioError("schemes", whole, f"unknown part {name}; choose from {known}, or FILE.py:CLASS")
    return _made(part_class(name), _values(values, whole), whole, before)


def _made(kind: Any, values: dict[str, Any], text: str, before: tuple[Part, ...] = ()) -> Part:
    """A part of a class. If one of its class is there before it, it keeps the values that are not given."""
    known = [each.name for each in fields(kind) if each.init] if is_dataclass(kind) else list(values)
    unknown = [name for name in values if name not in known]
    if unknown:
        rule = f"{kind.__name__} has no field {unknown[0]}; its fields are {', '.join(known) or '(none)'}"
        raise ScenarioError("schemes", text, rule)
    try:
        same: Any = next((part for part in reversed(before) if type(part) is kind and is_dataclass(part)), None)
        return checked_part(kind(**values) if same is None else replace(same, **values), text)
    except ScenarioError as error:
        raise ScenarioError("schemes", text, str(error)) from None
    except TypeError as error:
        raise ScenarioError("schemes", text, f"invalid values: {error}") from None


def _values(text: str, whole: str) -> dict[str, Any]:
    """Parse ``size=5, name="x"`` as TOML."""
    try:
        return tomllib.loads("\n".join(_split(text, ",")))
    except tomllib.TOMLDecodeError as error:
        rule = f"cannot parse {text!r}: {error}; expected values such as size=5, or name='text' with quotes"
        raise ScenarioError("schemes", whole, rule) from None


def is_ours(text: str) -> bool:
    found = _NAME.fullmatch(text)
    first, *others = (piece.strip() for piece in _split(found[2] if found else text, "+"))
    return first.split(":")[0] in TABLE and all(piece.split("(")[0].strip() in PARTS for piece in others)


def split_names(text: str) -> list[str]:
    """Split a list of methods at its commas, except commas within parentheses."""
    return [name.strip() for name in _split(text, ",") if name.strip()]


def _split(text: str, mark: str) -> list[str]:
    """Split at each mark outside parentheses."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == mark and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def _own_name(name: str, kind: str = "") -> str:
    """Reject names of Wayfare's methods as names of your own."""
    if not name:
        raise ScenarioError("schemes", kind, "your own upload rule needs a `name`")
    if name.split(":")[0] in TABLE:
        raise ScenarioError("schemes", name, "is the name of a method of Wayfare; choose another")
    return name
