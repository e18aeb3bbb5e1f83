"""`wayfare schemes` and `wayfare presets`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from wayfare.cli.terminal import JsonOption, listing, output, print_json
from wayfare.errors import ScenarioError
from wayfare.methods import choices_of, descriptions, part_descriptions
from wayfare.scenario import load, preset_names
from wayfare.scenario.dump import to_toml

NameArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[PRESET]", help="Print this preset as TOML, with every field.")
]

_CHOICES = """
Choices follow the name, as in afl-spar:paced or fedbuff:fitting:paced.
Energy rule of a baseline: :greedy (default), :paced, :unlimited.
mads-rd, extensions of mads: :index, :values, :curve (default), :progressive.
fedasync, weight against staleness: :polynomial (default), :constant, :hinge.
afl, fedasync, fedmobile: :fitting skips uploads that cannot finish.
fedmobile: :billed charges devices for relays.
Published methods accept the choices of the scheme that they modify.
Replace parts of a scheme like this: "mine = mads + buffer(size=5)". List all parts: wayfare schemes --parts"""

PartsOption: TypeAlias = Annotated[bool, typer.Option("--parts", help="List the parts that schemes are made of.")]


def schemes_command(parts: PartsOption = False, as_json: JsonOption = False) -> None:
    """List the schemes, or the parts that they are made of.

    Examples: `wayfare schemes`, `wayfare schemes --parts`
    """
    known = descriptions()
    found = part_descriptions() if parts else {}
    if as_json:
        listed = [{"name": name, "description": text, "choices": choices_of(name)} for name, text in known.items()]
        every = [{"name": name, "kind": kind, "description": text} for name, (kind, text) in found.items()]
        print_json({"schemes": listed} | ({"parts": every} if parts else {}))
        return
    if parts:
        rows = ((name, kind, text) for name, (kind, text) in found.items())
        output.print(listing(("part", "kind", "description"), rows))
        return
    output.print(listing(("name", "description"), known.items()))
    output.print(_CHOICES, style="dim", highlight=False)


def presets_command(name: NameArgument = None, as_json: JsonOption = False) -> None:
    """List the built-in presets, or print one as TOML with every field.

    Examples: `wayfare presets`, `wayfare presets fashion-small > mine.toml`
    """
    if name is not None:
        if name not in preset_names():
            raise ScenarioError("preset", name, f"must be one of {', '.join(preset_names())}")
        if as_json:
            print_json(load(name).model_dump(mode="json"))
        else:
            print(to_toml(load(name)), end="")
        return
    scenarios = [load(name) for name in preset_names()]
    if as_json:
        print_json({"presets": [scenario.model_dump(mode="json") for scenario in scenarios]})
        return
    rows = [
        (each.name, each.learning.task, str(each.fleet.devices), f"{each.rounds:,}", each.mobility.model)
        for each in scenarios
    ]
    output.print(listing(("name", "task", "devices", "rounds", "mobility"), rows))
