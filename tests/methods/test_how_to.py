"""The code on the page about your own methods runs unchanged, with every part in a method."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.simulator.golden_cases import BASE
from tests.simulator.test_simulator import Notes

from wayfare.device import Checks
from wayfare.methods import make_method
from wayfare.methods.registry import KINDS, kind_of
from wayfare.scenario import load
from wayfare.simulator import Simulation
from wayfare.world import draw_world

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "methods.md"
NAMES = ["patient", "signs", "halves", "keeps-going", "by-samples", "last-in-line"]


def methods() -> list[Any]:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    module = ModuleType("how_to")
    # Dataclasses look their module up by its name.
    sys.modules["how_to"] = module
    exec(compile(code, str(PAGE), "exec"), vars(module))
    return list(module.methods())


@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_every_example_runs_and_changes_what_it_says(place: int) -> None:
    scenario = load("fashion-small", list(BASE))
    method, world = make_method(methods()[place], scenario), draw_world(scenario, 0)
    assert method.name == NAMES[place]
    first, again = Notes(), Notes()
    outcome = Simulation(world, method, first, checks=Checks(paranoid=True)).run()
    Simulation(world, method, again).run()
    assert first == again
    assert sum(event.entries for event in first.contacts) > 0
    assert bool((outcome.model != world.initial_model).any())


def test_there_is_one_for_each_kind_of_part() -> None:
    scenario = load("fashion-small", list(BASE))
    plain = make_method("afl-spar:paced", scenario)
    kinds = set()
    for recipe in methods():
        for kind, part in make_method(recipe, scenario).parts.items():
            if type(part).__module__ == "how_to":
                assert kind_of(part) == kind
                kinds.add(kind)
    # A guard stands before the server rule and is not one of the six parts. Another privacy rule needs a proof.
    assert kinds == set(KINDS) - {"guard", "privacy"}
    assert all(type(part).__module__ != "how_to" for part in plain.parts.values())
