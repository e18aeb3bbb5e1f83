"""How good the global model is for each device: the mean, and the worst tenth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import SMALL
from torch import nn

import wayfare
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.device_scores import worst_tenth
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.tasks import Metric
from wayfare.learning.tasks.own import OwnTask
from wayfare.scenario import Scenario
from wayfare.world import World, device_scores, draw_world

RNG = np.random.default_rng(3)
ROWS, TEST = (RNG.standard_normal((count, 4)).astype(np.float32) for count in (40, 30))
LABELS, TEST_LABELS = np.arange(40) % 4, RNG.integers(0, 4, 30)
CARS = np.array([f"cab{number % 3}" for number in range(40)])
TEST_CARS = np.array([f"cab{number % 3}" for number in range(30)])


def network() -> nn.Module:
    return nn.Linear(4, 4)


def task_of(**more: Any) -> OwnTask:
    return wayfare.own_task("mine", train=(ROWS, LABELS), test=(TEST, TEST_LABELS), network=network, **more)


def scenario_of(*overrides: str) -> Scenario:
    settings = ["fleet.devices=3", "rounds=8", "learning.batch_size=4", "learning.evaluate_devices=true"]
    return wayfare.load("fashion-small", [*settings, *overrides])


def scores_of(scenario: Scenario, task: OwnTask) -> tuple[dict[str, float], np.ndarray, World]:
    """What an evaluation says of devices, which samples were judged right, and who holds what."""
    world = draw_world(scenario, 0, task)
    module = task.model.module()
    found = Evaluator(task, device_scores(world, task))(world.initial_model)
    nn.utils.vector_to_parameters(world.initial_model, module.parameters())
    right = (module(torch.from_numpy(TEST)).argmax(dim=1).numpy() == TEST_LABELS).astype(float)
    return found.others, right, world


def test_a_device_is_judged_by_its_own_mix_of_classes() -> None:
    """Each class by the accuracy on its test samples, with the share that it has among the samples of the device."""
    others, right, world = scores_of(scenario_of("learning.partition.concentration=0.3"), task_of())
    by_class = [right[label == TEST_LABELS].mean() for label in range(4)]
    expected = []
    for held in world.held:
        expected.append(np.mean([by_class[LABELS[sample]] for sample in held]))
    assert others["accuracy_device_mean"] == pytest.approx(np.mean(expected))
    assert others["accuracy_worst_tenth"] == pytest.approx(min(expected))


def test_a_vehicle_is_judged_by_the_test_samples_that_it_recorded() -> None:
    task = task_of(vehicles=CARS, test_vehicles=TEST_CARS)
    others, right, _ = scores_of(scenario_of("learning.partition.kind=own"), task)
    expected = [right[f"cab{number}" == TEST_CARS].mean() for number in range(3)]
    assert others["accuracy_device_mean"] == pytest.approx(np.mean(expected))
    assert others["accuracy_worst_tenth"] == pytest.approx(min(expected))


def test_any_score_can_be_judged_on_the_test_samples_of_a_vehicle() -> None:
    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.detach().std() / len(targets)

    task = task_of(vehicles=CARS, test_vehicles=TEST_CARS, score=spread, metric=Metric(name="spread", better="lower"))
    others, _, _ = scores_of(scenario_of("learning.partition.kind=own"), task)
    assert set(others) == {"spread_device_mean", "spread_worst_tenth"}
    assert others["spread_worst_tenth"] > others["spread_device_mean"]


def test_the_worst_tenth_are_the_worst_devices_and_at_least_one() -> None:
    scores = [0.9, 0.1, 0.5, *[0.7] * 22]
    assert worst_tenth(scores, better="higher") == pytest.approx((0.1 + 0.5 + 0.7) / 3)
    assert worst_tenth(scores, better="lower") == pytest.approx((0.9 + 0.7 + 0.7) / 3)
    assert worst_tenth([0.4, 0.2], better="higher") == 0.2


def test_devices_are_judged_only_where_asked() -> None:
    scenario = wayfare.load("fashion-small", ["fleet.devices=3", "rounds=8", "learning.batch_size=4"])
    assert device_scores(draw_world(scenario, 0, task_of()), task_of()) is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"loss": nn.functional.cross_entropy, "score": nn.functional.cross_entropy}, "or accuracy as its score"),
        ({"kinds": np.zeros(40, dtype=int)}, "or accuracy as its score"),
    ],
)
def test_what_cannot_be_judged_by_device_is_refused(more: dict[str, Any], message: str) -> None:
    if "score" in more:
        more = {**more, "metric": Metric(name="loss", better="lower")}
    task = task_of(**more)
    with pytest.raises(
        ScenarioError, match=rf"learning\.evaluate_devices = True: .*mine needs test_vehicles, {message}"
    ):
        device_scores(draw_world(scenario_of(), 0, task), task)


def test_test_samples_without_a_vehicle_are_refused() -> None:
    with pytest.raises(InputError, match="test_vehicles: has 2 names for 30 samples"):
        task_of(vehicles=CARS, test_vehicles=["cab0", "cab1"])
    with pytest.raises(InputError, match="also give vehicles"):
        task_of(test_vehicles=TEST_CARS)
    task = task_of(vehicles=CARS, test_vehicles=["cab0"] * 30)
    with pytest.raises(InputError, match="test_vehicles: the devices cab1, cab2 recorded no sample"):
        device_scores(draw_world(scenario_of("learning.partition.kind=own"), 0, task), task)


def test_records_tables_and_json_have_the_scores_of_devices(tmp_path: Path) -> None:
    from rich.console import Console

    from wayfare.records.summary import run_json
    from wayfare.report.sections import results_section
    from wayfare.report.study_json import results_json
    from wayfare.report.tables import comparison_table

    scenario = wayfare.load("fashion-small", [*SMALL, "learning.evaluate_devices=true"])
    done = wayfare.compare(scenario, ["mads", "afl"], seeds=2, jobs=1, out=tmp_path)
    record = done.runs[0]
    assert len(record.others["accuracy_worst_tenth"]) == len(record.evaluations["round"])
    assert np.all(record.others["accuracy_worst_tenth"] <= record.others["accuracy_device_mean"])
    assert run_json(record)["others"].keys() == {"accuracy_device_mean", "accuracy_worst_tenth"}
    mean = results_json(done)["rows"][0]["metrics"]["accuracy_worst_tenth"]["mean"]
    console = Console(width=160)
    with console.capture() as shown:
        console.print(comparison_table(done.schemes, done.runs, width=160))
    assert "worst" in shown.get()
    assert f"{100 * mean:.1f}" in shown.get()
    assert f"{100 * mean:.1f}" in str(results_section(done))


def test_metrics_of_torchmetrics_judge_devices_too() -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics: pip install torchmetrics")
    task = task_of(
        vehicles=CARS,
        test_vehicles=TEST_CARS,
        score=torchmetrics.classification.MulticlassF1Score(num_classes=4, average="macro"),
        metric=Metric(name="f1", better="higher"),
    )
    others, _, _ = scores_of(scenario_of("learning.partition.kind=own"), task)
    again, _, _ = scores_of(scenario_of("learning.partition.kind=own"), task)
    assert others == again


@pytest.mark.gpu
def test_a_gpu_judges_devices_as_the_cpu_does(tmp_path: Path) -> None:
    settings = ["rounds=20", "learning.evaluate_every_rounds=10", "learning.evaluate_devices=true"]
    scenario = wayfare.load("fashion-small", settings)
    found = {}
    for device in ("cpu", "cuda"):
        execution = wayfare.Execution(device=device)
        found[device] = wayfare.compare(scenario, ["mads"], jobs=1, out=tmp_path / device, execution=execution).runs[0]
    assert found["cuda"].others.keys() == {"accuracy_device_mean", "accuracy_worst_tenth"}
    for name, values in found["cuda"].others.items():
        assert values == pytest.approx(found["cpu"].others[name], abs=1e-3)
