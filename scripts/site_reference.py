"""MkDocs hook: generated reference pages for the command line, the Python API and scenario fields."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

import typer
from annotated_types import Le
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from typer.cli import get_docs_for_click

import wayfare
from wayfare.cli.app import app
from wayfare.scenario import Scenario
from wayfare.scenario.dump import toml_value

UNITS = {
    "dbm_per_hz": "dBm/Hz",
    "bits": "bit",
    "db": "dB",
    "deg": "°",
    "hz": "Hz",
    "joules": "J",
    "m": "m",
    "mps": "m/s",
    "rad": "rad",
    "rounds": "rounds",
    "s": "s",
    "watts": "W",
}
BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": "≥",
    "exclusiveMaximum": "<",
    "maximum": "≤",
    "multipleOf": "multiple of",
}
API_SECTIONS = {
    "scenario": "Scenarios",
    "report.notebook": "Comparisons and studies",
    "studies": "Runs",
    "methods": "Methods and their parts",
    "radio": "Radio",
    "learning.tasks": "Tasks",
    "cli.terminal": "Progress",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {"command-line": command_line(), "api": python_api(), "scenario": scenario_fields()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def command_line() -> str:
    """Every command with its help, arguments and options, as typer writes them."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="wayfare")
    # Typer truncates the summaries in its lists of commands, so replace them by links.
    owner = "wayfare"
    lines = []
    for line in text.splitlines():
        owner = line.strip("# `") if line.startswith("#") else owner
        listed = re.match(r"\* `([a-z]\S*)`: ", line)
        anchor = f"{owner} {listed[1]}".replace(" ", "-") if listed else ""
        lines.append(f"* [`{owner} {listed[1]}`](#{anchor})" if listed else line)
    return "\n".join(["# Command line", "", *lines[2:], ""])


def python_api() -> str:
    """The public names of the package, from their docstrings."""
    names = defaultdict(list)
    for name, home in wayfare._HOME.items():
        public = getattr(wayfare, name)
        names[API_SECTIONS[home]].append(f"{public.__module__}.{public.__qualname__}")
    names[API_SECTIONS["report.notebook"]].append("wayfare.report.notebook.ShownResults")
    lines = [
        "# Python API",
        "",
        "All names except `ShownResults` belong to the package: `wayfare.load(...)`.",
        "",
    ]
    for title in API_SECTIONS.values():
        lines += [f"## {title}", "", *(f"::: {name}\n" for name in names[title])]
    return "\n".join(lines)


def scenario_fields() -> str:
    """A table for each section: name, meaning, unit, default and rule of every field."""
    intro = (
        "# Scenario fields",
        "",
        "A scenario is a TOML file or a preset. Set a field in the file, or by its dotted name:"
        " `--set radio.bandwidth_hz=2e6`.",
        "",
        "`wayfare presets NAME` prints a preset with all its fields. Defaults below are those of a scenario file;"
        " presets have their own values.",
        "",
    )
    return "\n".join([*intro, *_section("", Scenario, set())])


def _section(path: str, model: type[BaseModel], written: set[tuple[str, type]]) -> Iterator[str]:
    """The table of a section, then those of its subsections; alternatives have one table each."""
    if (path, model) in written:
        return
    written.add((path, model))
    kinds = [name for name in ("model", "kind") if name in model.model_fields]
    kind = model.model_fields[kinds[0]].default if kinds else None
    yield f"## {path or 'Top level'}{f': {kind}' if kind else ''}"
    yield ""
    yield from (f"`{path}.{kinds[0]} = {toml_value(kind)}`", "") if kind else ()
    yield from ((inspect.getdoc(model) or "").splitlines())
    yield ""
    below = {name: _models(field.annotation) for name, field in model.model_fields.items()}
    rows = [name for name, models in below.items() if not models and name not in kinds]
    if rows:
        yield "| field | meaning | unit | default | rule |"
        yield "| --- | --- | --- | --- | --- |"
        schemas = model.model_json_schema()["properties"]
        for name in rows:
            schema = schemas[name]
            # Bounds behind a validator are missing from the schema, but not from the metadata.
            for bound in model.model_fields[name].metadata:
                if isinstance(bound, Le):
                    schema["maximum"] = min(schema.get("maximum", bound.le), bound.le)
            cells = (f"`{name}`", meaning(model, name), _unit(name), _default(model, name), rule(schema))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""
    for name, models in below.items():
        for inner in models:
            yield from _section(f"{path}.{name}" if path else name, inner, written)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _unit(name: str) -> str:
    return next((unit for suffix, unit in UNITS.items() if name.endswith(f"_{suffix}") or name == suffix), "")


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{toml_value(field.default)}`"


def rule(schema: dict[str, Any], plural: str = "") -> str:
    """What a value must be, from the field's JSON schema."""
    if "anyOf" in schema:
        return " or ".join(rule(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "const" in schema:
        return f"`{toml_value(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{toml_value(value)}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return f"[{', '.join(rule(item) for item in schema['prefixItems'])}]"
    if schema["type"] == "array":
        least = f", at least {schema['minItems']} entries" if "minItems" in schema else ""
        return f"list of {rule(schema['items'], 's')}{least}"
    if schema["type"] == "boolean":
        return "`true` or `false`"
    bounds = [f"{word} {_number(schema[key])}" for key, word in BOUNDS.items() if key in schema]
    pattern = [f"matches `{schema['pattern']}`"] if "pattern" in schema else []
    return ", ".join([schema["type"] + plural, *bounds, *pattern])


def _number(value: float) -> str:
    return f"{value:,.12g}" if 1e-4 <= abs(value) < 1e9 or value == 0 else f"{value:g}".replace("e+", "e")


def meaning(model: type[BaseModel], name: str) -> str:
    """The comment above a field, or beside it, in the class that declares it."""
    owner = next(cls for cls in model.__mro__ if name in inspect.get_annotations(cls))
    lines = inspect.getsource(owner).splitlines()
    at = next(number for number, line in enumerate(lines) if re.match(rf"    {name}: ", line))
    above = []
    for line in reversed(lines[:at]):
        if not line.startswith("    # "):
            break
        above.append(line.removeprefix("    # "))
    _, _, beside = lines[at].partition("  # ")
    return " ".join([*reversed(above), beside]).strip()
