"""Recalibrated statistics change the evaluated model and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.learning.test_recalibrate import MODEL, noise_task
from tests.simulator.test_checkpoint import assert_same, taken_up, undisturbed
from tests.simulator.test_simulator import Notes, simulate
from wayfare.errors import ScenarioError
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.recalibrate import Recalibration, draw_samples
from wayfare.methods import make_method
from wayfare.records.checkpoints import read_checkpoint
from wayfare.simulator import Simulation
from wayfare.world import World, draw_world

TASK = noise_task(120)


def world_of(recalibrate: int, average_rounds: int = 0) -> World:
    overrides = [f"learning.recalibrate_statistics={recalibrate}", f"server.average_rounds={average_rounds}"]
    short = ["rounds=12", "fleet.devices=3", "learning.evaluate_every_rounds=4"]
    return draw_world(wayfare.load("fashion-small", [*SMALL, *short, *overrides]), 0, TASK)


@pytest.mark.parametrize("average_rounds", [0, 5])
@pytest.mark.parametrize("name", ["mads", "optimal", "fedasync"])
def test_contacts_energy_bits_and_devices_are_the_same_with_and_without(name: str, average_rounds: int) -> None:
    (plain, without), (judged, notes) = (simulate(world_of(count, average_rounds), name) for count in (0, 40))
    assert len(notes.contacts) > 3
    assert notes.contacts == without.contacts
    for event, other in zip(notes.evaluations, without.evaluations, strict=True):
        assert event.loss != other.loss
        assert replace(event, score=other.score, loss=other.loss) == other
    for state, device in zip(judged.states, plain.states, strict=True):
        assert torch.equal(state.received, device.received)
        assert torch.equal(state.memory, device.memory)
        assert state.spent_joules == device.spent_joules
    assert torch.equal(judged.model[: MODEL.parameters], plain.model[: MODEL.parameters])
    assert not torch.equal(judged.model[MODEL.parameters :], plain.model[MODEL.parameters :])


@pytest.mark.parametrize("average_rounds", [0, 5])
def test_a_run_ends_with_the_model_that_was_judged(average_rounds: int) -> None:
    world, notes = world_of(40, average_rounds), Notes()
    simulation = Simulation(world, make_method("optimal", world.scenario), notes)
    outcome = simulation.run()
    last, found = notes.evaluations[-1], Evaluator(TASK)(outcome.model)
    assert (found.score, found.loss) == (last.score, last.loss)
    state = simulation.state()
    samples = torch.from_numpy(draw_samples(40, world.held, world.seed))
    expected = Recalibration(TASK, samples)(state.server.judged)
    assert torch.equal(outcome.model, expected)


def test_without_it_the_model_itself_is_judged() -> None:
    world, notes = world_of(0), Notes()
    simulation = Simulation(world, make_method("optimal", world.scenario), notes)
    outcome = simulation.run()
    assert outcome.model is simulation.state().server.model
    found = Evaluator(TASK)(outcome.model)
    assert (found.score, found.loss) == (notes.evaluations[-1].score, notes.evaluations[-1].loss)


@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_repeats_and_resumed_runs_are_the_same_to_the_bit(engine: str, tmp_path: Path) -> None:
    world = world_of(40, average_rounds=5)
    expected = undisturbed(world, "optimal", tmp_path, (7, 12), engine)
    assert_same(undisturbed(world, "optimal", tmp_path, (), engine), expected, after=-1)
    for saved in expected[1].saved:
        assert_same(taken_up(world, "optimal", read_checkpoint(tmp_path, saved), engine), expected, saved.round)


def test_records_hold_the_model_that_was_judged(tmp_path: Path) -> None:
    scenario = world_of(40).scenario
    first, again = (wayfare.run(scenario, "optimal", task=TASK, out=tmp_path / part) for part in "ab")
    assert torch.equal(first.model, again.model)
    assert Evaluator(TASK)(first.model).loss == first.evaluations["loss"][-1]


def test_comparisons_say_so_before_their_first_run(tmp_path: Path) -> None:
    scenario = wayfare.load("fashion-small", [*SMALL, "learning.recalibrate_statistics=40"])
    with pytest.raises(ScenarioError, match="recalibrate_statistics = 40: needs batch normalisation, but this mlp"):
        wayfare.compare(scenario, ["mads"], seeds=1, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_more_samples_than_the_fleet_holds_are_refused() -> None:
    world = world_of(121)
    with pytest.raises(ScenarioError, match=r"recalibrate_statistics = 121: must not exceed the \d+ training samples"):
        Simulation(world, make_method("optimal", world.scenario), Notes())
