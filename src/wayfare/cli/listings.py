"""`wayfare schemes` and `wayfare presets`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from wayfare.cli.terminal import JsonOption, listing, output, print_json
from wayfare.errors import ScenarioError
from wayfare.methods import choices_of, descriptions, part_descriptions
from wayfare.scenario import load, preset_names
from wayfare.scenario.dump import to_toml

NameArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[PRESET]", help="Print this one, with every field, as TOML.")
]

_CHOICES = """
Baselines take an energy rule, as in afl-spar:paced: :greedy (default), :paced, :unlimited.
mads-rd takes how far it goes beyond mads: :index, :values, :curve (default), :progressive.
fedasync also takes how weight falls with age: :polynomial (default), :constant, :hinge.
afl, fedasync and fedmobile take :fitting: an upload that cannot finish is not started.
fedmobile also takes :billed: devices pay for relays.
Published methods take the choices of the scheme they change, as in fedbuff:fitting:paced.
A part may take the place of a scheme's own, as in "mine = mads + buffer(size=5)"; for parts: wayfare schemes --parts"""

PartsOption: TypeAlias = Annotated[bool, typer.Option("--parts", help="List the parts that schemes are made of.")]


def schemes_command(parts: PartsOption = False, as_json: JsonOption = False) -> None:
    """List the schemes, a line each, or the parts they are made of.

    Example: `wayfare schemes`, `wayfare schemes --parts`
    """
    known = descriptions()
    found = part_descriptions() if parts else {}
    if as_json:
        listed = [{"name": name, "description": text, "choices": choices_of(name)} for name, text in known.items()]
        every = [{"name": name, "kind": kind, "description": text} for name, (kind, text) in found.items()]
        print_json({"schemes": listed} | ({"parts": every} if parts else {}))
        return
    if parts:
        output.print(listing(("part", "kind", "what it is"), ((name, *of_part) for name, of_part in found.items())))
        return
    output.print(listing(("name", "what it is"), known.items()))
    output.print(_CHOICES, style="dim", highlight=False)


def presets_command(name: NameArgument = None, as_json: JsonOption = False) -> None:
    """List the presets inside the package, or print one with every field it has, as a file to start from.

    Example: `wayfare presets`, `wayfare presets fashion-small > mine.toml`
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
