"""Invalid Python calls are rejected before anything runs; the error names argument, value and rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wayfare
from wayfare.cli.terminal import seeds_of
from wayfare.errors import ScenarioError
from wayfare.scenario import Scenario
from wayfare.studies.arguments import checked_scenario, checked_seeds


def test_the_package_lists_its_public_names() -> None:
    assert {name for name in dir(wayfare) if not name.startswith("__")} == set(wayfare.__all__) - {"__version__"}
    assert "__version__" in dir(wayfare)


@pytest.mark.parametrize("call", [wayfare.compare, wayfare.run])
def test_the_name_of_a_scenario_is_no_scenario(call: Any) -> None:
    with pytest.raises(
        ScenarioError, match=r"scenario = 'fashion-small': must be a Scenario, such as `wayfare\.load\("
    ):
        call("fashion-small")
    with pytest.raises(
        ScenarioError, match=r"scenario = 'dict': must be a Scenario, such as `wayfare\.load\('fashion-small'"
    ):
        call({"rounds": 5})


def test_a_task_is_a_task_and_names_belong_into_the_scenario(small: Scenario) -> None:
    with pytest.raises(ScenarioError, match=r"task = 'mine\.py:task': must be a task.*learning\.task=mine\.py:task"):
        wayfare.compare(small, ["mads"], task="mine.py:task")  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=r"task = 'dict': must be a task, as built by `wayfare\.own_task`$"):
        wayfare.run(small, "mads", task={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        ("mads", r"schemes = 'mads': must be a list, as in \['mads'\]"),
        (5, "schemes = 5: must be a list of names"),
        ({"mads": 1}, "schemes = 'dict': must be a list of names"),
    ],
)
def test_schemes_are_a_list(schemes: Any, message: str, small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        wayfare.compare(small, schemes, out=tmp_path)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (2.5, r"seeds = 2\.5: must be a number of seeds, or a list"),
        ("3", "seeds = '3': must be a number of seeds, or a list"),
        (True, "seeds = True: must be"),
        (None, "seeds = None: must be"),
        (0, "seeds = 0: must be at least 1"),
        ([], r"seeds = \[\]: must be at least 1"),
        ([1, 1], r"seeds = \[1, 1\]: must not repeat"),
        ([1, 2.5], r"seeds = 2\.5: must be an integer of at least 0"),
        ([-1], "seeds = -1: must be at least 0"),
    ],
)
def test_seeds_are_a_number_or_a_list(seeds: Any, message: str, small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message):
        wayfare.compare(small, ["mads"], seeds=seeds, out=tmp_path)


def test_seeds_of_numpy_count_too() -> None:
    assert checked_seeds(np.int64(2)) == [0, 1]
    assert checked_seeds(np.arange(3, 5)) == checked_seeds(range(3, 5)) == [3, 4]


def test_one_seed_is_whole(small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"seed = 2\.5: must be an integer"):
        wayfare.run(small, seed=2.5, out=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"rounds": -5}, "rounds = -5: "),
        ({"rounds": "many"}, "rounds = 'many': "),
        ({"round": 5}, "round = 5: no such field; known fields: .*rounds"),
        ({"fleet": {"device": 5}}, r"fleet\.device = 5: "),
    ],
)
def test_a_copy_with_invalid_fields_is_refused(
    update: dict[str, Any], message: str, small: Scenario, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        wayfare.run(small.model_copy(update=update), out=tmp_path)


def test_a_valid_scenario_stays_what_it_is(small: Scenario) -> None:
    assert checked_scenario(small) == small


def test_seeds_on_the_command_line_are_a_number_or_a_list() -> None:
    assert [seeds_of(text) for text in ("3", "1,2,3", "7,")] == [3, [1, 2, 3], [7]]
    for text in ("many", "1,x", "1.5", "0"):
        with pytest.raises(ScenarioError, match="--seeds = "):
            seeds_of(text)
