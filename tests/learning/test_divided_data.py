"""Data that belong to devices: indices for each, or the vehicle that recorded each sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import wayfare
from wayfare.errors import InputError, ScenarioError
from wayfare.identity import changes, identity_of
from wayfare.learning.tasks import own_task
from wayfare.learning.tasks.own import OwnTask
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.world import draw_world

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((12, 4)).astype(np.float32)
LABELS = np.arange(12) % 3
# Recorded by three cars, in no order.
CARS = ["cab10", "cab2", "cab2", "van", "cab10", "van", "cab2", "cab2", "van", "van", "cab10", "cab2"]
CONTACTS = "start_s,end_s,a,b\n" + "".join(
    f"{20 * turn + place},{20 * turn + place + 5},{car},bus\n"
    for turn in range(5)
    for place, car in enumerate(("van", "cab2", "cab10"))
)


def network() -> nn.Module:
    return nn.Linear(4, 3)


def task_of(**division: Any) -> OwnTask:
    return own_task("mine", train=(ROWS, LABELS), test=(ROWS, LABELS), network=network, **division)


def scenario_of(*overrides: str, devices: int = 3) -> Scenario:
    own = ["learning.partition.kind=own", "learning.batch_size=2", f"fleet.devices={devices}", "rounds=8"]
    return wayfare.load("fashion-small", [*own, *overrides])


def on_trace(tmp_path: Path, *overrides: str, text: str = CONTACTS, devices: int = 3) -> Scenario:
    file = tmp_path / "contacts.csv"
    file.write_text(text)
    trace = ["mobility.model=trace", f"mobility.file={file}", "mobility.server=bus"]
    return scenario_of(*trace, *overrides, devices=devices)


def held_by(scenario: Scenario, task: OwnTask) -> list[list[int]]:
    return [samples.tolist() for samples in draw_world(scenario, 0, task).held]


def test_indices_say_what_each_device_holds() -> None:
    task = task_of(devices=[[3, 1], np.array([0, 11, 5]), range(6, 8)])
    assert held_by(scenario_of(), task) == [[3, 1], [0, 11, 5], [6, 7]]


def test_a_sample_may_be_with_two_devices_or_with_none() -> None:
    assert held_by(scenario_of(devices=2), task_of(devices=[[0, 1], [1, 2]])) == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([[0], [12]], "device 1 has sample 12; must be 0 to 11"),
        ([[0], [-1]], "device 1 has sample -1; must be 0 to 11"),
        ([[0], []], "device 1 has no samples"),
        ([[0], [1.5]], "device 1: must be integers"),
        ([[0], [2, 2]], "device 1 has sample 2 twice"),
        ([], "must list the samples of at least one device"),
        ([[True, False], [False, True]], "device 0: must be integers"),
    ],
)
def test_indices_that_are_no_division_are_refused(devices: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of(devices=devices)


def test_as_many_devices_as_the_task_divides_its_samples_among() -> None:
    with pytest.raises(ScenarioError, match=r"fleet\.devices = 4: must be 2, because the task mine divides"):
        held_by(scenario_of(devices=4), task_of(devices=[[0], [1]]))


def test_vehicles_of_a_drawn_world_are_its_devices_in_the_order_of_their_names() -> None:
    # Numbers in names count as numbers, as in a trace.
    assert held_by(scenario_of(), task_of(vehicles=CARS)) == [[1, 2, 6, 7, 11], [0, 4, 10], [3, 5, 8, 9]]


def test_data_follow_the_vehicles_of_a_trace(tmp_path: Path) -> None:
    scenario = on_trace(tmp_path)
    assert held_by(scenario, task_of(vehicles=CARS)) == [[1, 2, 6, 7, 11], [0, 4, 10], [3, 5, 8, 9]]
    record = wayfare.run(scenario, task=task_of(vehicles=CARS), out=tmp_path / "runs")
    assert record.meta["scenario"]["learning"]["partition"] == {"kind": "own"}


def test_numbers_of_vehicles_are_names_too(tmp_path: Path) -> None:
    numbered = CONTACTS.replace("cab10", "30").replace("cab2", "4").replace("van", "5")
    column = np.array([{"cab10": 30, "cab2": 4, "van": 5}[car] for car in CARS])
    assert held_by(on_trace(tmp_path, text=numbered), task_of(vehicles=column))[0] == [1, 2, 6, 7, 11]


def test_names_that_no_vehicle_has_are_listed(tmp_path: Path) -> None:
    column = ["truck" if car == "van" else car for car in CARS]
    column[0] = "lorry"
    with pytest.raises(InputError, match=r"mine: vehicles: the trace has no vehicle named lorry, truck; it has"):
        held_by(on_trace(tmp_path), task_of(vehicles=column))


def test_devices_without_samples_are_listed(tmp_path: Path) -> None:
    column = ["cab2" if car == "van" else car for car in CARS]
    with pytest.raises(InputError, match=r"mine: vehicles: the devices van recorded no sample"):
        held_by(on_trace(tmp_path), task_of(vehicles=column))


def test_samples_of_vehicles_that_are_no_devices_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    longer = CONTACTS + "10,12,cab2,bus\n50,52,cab2,bus\n70,71,van,bus\n"
    with caplog.at_level("WARNING", logger="wayfare"):
        assert held_by(on_trace(tmp_path, text=longer, devices=2), task_of(vehicles=CARS)) == [
            [1, 2, 6, 7, 11],
            [3, 5, 8, 9],
        ]
    assert "3 of 12 samples are unused, because their vehicles are not devices of this run: cab10" in caplog.text


@pytest.mark.parametrize(
    ("vehicles", "message"),
    [
        (CARS[:5], "vehicles: has 5 names for 12 samples"),
        ([0.5] * 12, "vehicles: must be strings or integers, not float64"),
        ([*CARS[:11], None], "vehicles: sample 11 has no name"),
        ([*CARS[:11], ""], "vehicles: sample 11 has no name"),
    ],
)
def test_a_column_that_names_no_vehicles_is_refused(vehicles: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of(vehicles=vehicles)


def test_a_task_is_divided_in_one_way() -> None:
    with pytest.raises(InputError, match="give devices or vehicles, not both"):
        task_of(devices=[[0]], vehicles=CARS)


def test_a_task_that_is_not_divided_has_no_partition_of_its_own() -> None:
    with pytest.raises(ScenarioError, match=r"learning\.partition\.kind = 'own': the task mine does not divide"):
        held_by(scenario_of(), task_of())


def test_no_other_partition_takes_the_place_of_the_tasks_own() -> None:
    with pytest.raises(ScenarioError, match=r"learning\.partition\.kind = 'iid': must be own, because the task mine"):
        held_by(scenario_of("learning.partition.kind=iid"), task_of(vehicles=CARS))


def test_in_python_the_task_takes_the_place_of_the_partition_too(tmp_path: Path) -> None:
    scenario = scenario_of("learning.partition.kind=iid")
    record = wayfare.run(scenario, task=task_of(vehicles=CARS), out=tmp_path)
    assert record.meta["scenario"]["learning"]["partition"] == {"kind": "own"}


def test_the_division_is_part_of_a_runs_identity() -> None:
    scenario = scenario_of()
    one, other = (
        identity_of(scenario, make_method("mads", scenario), task_of(vehicles=column)) for column in (CARS, CARS[::-1])
    )
    assert changes(one, other) == ["the content of task.division"]
