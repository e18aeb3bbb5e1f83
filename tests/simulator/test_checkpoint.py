"""A resumed simulation is bit-identical to one that was never interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_simulator import CHOICES, Notes
from wayfare.device import DeviceState
from wayfare.engine import OnDisk, Policy, Shelf
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks import Classification
from wayfare.methods import make_method
from wayfare.records.checkpoints import Checkpoint, DamagedError, read_checkpoint, write_checkpoint
from wayfare.scenario import Scenario
from wayfare.simulator import Checks, ContactEvent, Outcome, Simulation, SimulationState
from wayfare.world import World, draw_world


class Saving(Notes):
    """Notes everything, and saves the simulation after some rounds."""

    def __init__(self, folder: Path, rounds: Sequence[int]) -> None:
        super().__init__()
        self.folder, self.wanted, self.saved = folder, rounds, list[Checkpoint]()
        self.simulation: Simulation | None = None

    def on_round(self, round_: int) -> None:
        super().on_round(round_)
        if round_ in self.wanted and self.simulation is not None:
            self.saved.append(write_checkpoint(self.folder, self.simulation.state()))


def undisturbed(
    world: World, name: str, folder: Path, rounds: Sequence[int], engine: str, policy: Policy = "ahead"
) -> tuple[Outcome, Saving]:
    notes = Saving(folder, rounds)
    scheme = make_method(name, world.scenario)
    notes.simulation = Simulation(world, scheme, notes, engine=engine, policy=policy)
    return notes.simulation.run(), notes


def taken_up(
    world: World,
    name: str,
    state: SimulationState,
    engine: str,
    policy: Policy = "ahead",
    shelf: Shelf | None = None,
    checks: Checks | None = None,
) -> tuple[Outcome, Notes]:
    notes = Notes()
    scheme = make_method(name, world.scenario)
    simulation = Simulation(world, scheme, notes, engine=engine, policy=policy, shelf=shelf, checks=checks)
    simulation.restore(state)
    return simulation.run(), notes


def assert_same(found: tuple[Outcome, Notes], expected: tuple[Outcome, Notes], after: int) -> None:
    (outcome, notes), (wanted, everything) = found, expected
    assert torch.equal(outcome.model, wanted.model)
    assert notes.contacts == [event for event in everything.contacts if event.round > after]
    assert notes.evaluations == [event for event in everything.evaluations if event.round > after]
    assert notes.rounds == [round_ for round_ in everything.rounds if round_ > after]
    for state, other in zip(outcome.states, wanted.states, strict=True):
        for field in fields(DeviceState):
            one, two = getattr(state, field.name), getattr(other, field.name)
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


@pytest.mark.parametrize(
    ("name", "engine"), [*((name, engine) for engine in ("stacked", "reference") for name in CHOICES), ("mads", "vmap")]
)
def test_every_scheme_and_engine_goes_on_to_the_same_bits(
    name: str, engine: str, small: Scenario, tmp_path: Path
) -> None:
    world = draw_world(small, 1)
    expected = undisturbed(world, name, tmp_path, (1, 33, 60), engine)
    for saved in expected[1].saved:
        found = taken_up(world, name, read_checkpoint(tmp_path, saved), engine)
        assert_same(found, expected, saved.round)


@pytest.mark.parametrize("policy", ["stepwise", "lazy", "ahead"])
def test_every_policy_goes_on_to_the_same_bits(policy: Policy, small: Scenario, tmp_path: Path) -> None:
    world = draw_world(small, 2)
    expected = undisturbed(world, "mads", tmp_path, (33,), "stacked", policy)
    assert_same(
        taken_up(world, "mads", read_checkpoint(tmp_path, expected[1].saved[0]), "stacked", policy), expected, 33
    )


def test_vectors_on_disk_are_laid_there_again(small: Scenario, tmp_path: Path) -> None:
    world = draw_world(small, 1)
    expected = undisturbed(world, "mads", tmp_path, (30,), "stacked")
    shelf = OnDisk(tmp_path / "vectors", 6, len(world.initial_model))
    state = read_checkpoint(tmp_path, expected[1].saved[0])
    assert_same(taken_up(world, "mads", state, "stacked", shelf=shelf), expected, 30)


def test_vectors_for_a_disk_are_not_copied_into_memory(small: Scenario, tmp_path: Path) -> None:
    world = draw_world(small, 1)
    saved = undisturbed(world, "mads", tmp_path, (30,), "stacked")[1].saved[0]
    state = read_checkpoint(tmp_path, saved)
    copied, large = state.copied(torch.device("cpu"), shelved=True), [*state.trainer.underway]
    assert large
    assert all(copied.trainer.underway[device] is state.trainer.underway[device] for device in large)
    for before, after in zip(state.devices, copied.devices, strict=True):
        assert after.memory is before.memory or before.memory.stride() == (0,)
        assert after.received is not before.received
    assert copied.server.model is not state.server.model


def test_normalisation_statistics_go_on_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((120, 3, 32, 32)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, 120))
    task = Classification(
        name="noise",
        model=Resnet9(width=2),
        classes=10,
        train_inputs=images,
        train_labels=labels,
        test_inputs=images[:20],
        test_labels=labels[:20],
    )
    world = draw_world(wayfare.load("fashion-small", [*SMALL, "rounds=12", "fleet.devices=3"]), 0, task)
    for engine in ("reference", "stacked"):
        expected = undisturbed(world, "optimal", tmp_path, (7,), engine)
        state = read_checkpoint(tmp_path, expected[1].saved[0])
        assert_same(taken_up(world, "optimal", state, engine), expected, 7)


@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_the_velocities_of_momentum_go_on_too(engine: str, small: Scenario, tmp_path: Path) -> None:
    world = draw_world(small, 1)
    without, _ = undisturbed(world, "mads", tmp_path, (), engine)
    name = "mads + sgd(momentum=0.5, steps_per_round=2)"
    expected = undisturbed(world, name, tmp_path, (1, 33), engine)
    assert not torch.equal(expected[0].model, without.model)
    for saved in expected[1].saved:
        state = read_checkpoint(tmp_path, saved)
        assert set(state.trainer.velocities) == set(state.trainer.underway) != set()
        assert_same(taken_up(world, name, state, engine), expected, saved.round)
    state.trainer.velocities[next(iter(state.trainer.velocities))][0] = torch.nan
    assert "the momentum of device" in str(state.first_nonfinite())


def test_devices_that_never_met_the_server_share_what_they_shared(tmp_path: Path) -> None:
    scenario = wayfare.load("fashion-small", [*SMALL, "fleet.devices=200", "rounds=3", "mobility.width_m=3000"])
    world = draw_world(scenario, 0)
    notes = Saving(tmp_path, (2,))
    scheme = make_method("mads", scenario)
    notes.simulation = Simulation(world, scheme, notes)
    notes.simulation.run()
    met = {event.device for event in notes.contacts if event.round <= 2}
    assert 0 < len(met) < 150
    (saved,) = notes.saved
    vector_bytes = 4 * len(world.initial_model)
    # Those who met have a memory and a received model, at most 48 more have a burst under way.
    assert saved.size_bytes < (2 * len(met) + 48 + 4) * vector_bytes + 400_000
    simulation = Simulation(world, scheme, Notes())
    simulation.restore(read_checkpoint(tmp_path, saved))
    state = simulation.state()
    strangers = [device for device in range(200) if device not in met]
    assert len({id(state.devices[device].received) for device in strangers}) == 1
    assert all(state.devices[device].memory.stride() == (0,) for device in strangers)


def test_a_state_of_another_run_is_refused(small: Scenario, tmp_path: Path) -> None:
    _, notes = undisturbed(draw_world(small, 1), "mads", tmp_path, (30,), "stacked")
    state = read_checkpoint(tmp_path, notes.saved[0])
    for overrides, message in (
        (["fleet.devices=5"], "the state has 6 devices, the scenario 5"),
        (["learning.hidden=[17]"], "another model"),
        (["rounds=20"], "from round 30, the scenario has 20 rounds"),
    ):
        world = draw_world(wayfare.load("fashion-small", [*SMALL, *overrides]), 1)
        with pytest.raises(ValueError, match=message):
            Simulation(world, make_method("mads", small), Notes()).restore(state)


def test_a_checkpoint_that_was_touched_is_refused(small: Scenario, tmp_path: Path) -> None:
    _, notes = undisturbed(draw_world(small, 1), "mads", tmp_path, (30,), "stacked")
    (saved,) = notes.saved
    file = tmp_path / saved.file
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:], b""):
        file.write_bytes(damaged)
        with pytest.raises(DamagedError):
            read_checkpoint(tmp_path, saved)
    file.unlink()
    with pytest.raises(DamagedError, match="cannot be read"):
        read_checkpoint(tmp_path, saved)


def test_paranoid_checks_see_nothing_wrong_in_a_run_taken_up(small: Scenario, tmp_path: Path) -> None:
    world = draw_world(small, 1)
    expected = undisturbed(world, "mads", tmp_path, (30,), "stacked")
    state = read_checkpoint(tmp_path, expected[1].saved[0])
    assert_same(taken_up(world, "mads", state, "stacked", checks=Checks(paranoid=True)), expected, 30)


def test_numbers_that_a_scheme_computed_with_numpy_are_saved_as_plain_ones(small: Scenario, tmp_path: Path) -> None:
    class Numerical(wayfare.UploadRule):
        name = "numerical"

        def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
            sent = wayfare.send_top_k(encounter, link, link.max_power_watts)
            return wayfare.Upload(
                entries=np.int64(sent.entries),  # type: ignore[arg-type]
                bits=np.float64(sent.bits),
                power_watts=np.float64(sent.power_watts),
                energy_joules=np.float64(sent.energy_joules),
            )

    record = wayfare.run(
        small,
        Numerical(),
        out=tmp_path,
        execution=wayfare.Execution(safeguards=wayfare.Safeguards(checkpoint_every_rounds=7)),
    )
    plain = wayfare.run(small, "optimal", out=tmp_path)
    assert torch.equal(record.model, plain.model)
    for name in (field.name for field in fields(ContactEvent)):
        assert np.array_equal(record.contacts[name], plain.contacts[name])


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["cuda_graphs", "stacked", "reference"])
def test_a_run_on_a_gpu_goes_on_to_the_same_bits(engine: str, small: Scenario, tmp_path: Path) -> None:
    execution = wayfare.Execution(
        engine=engine, device="cuda", safeguards=wayfare.Safeguards(checkpoint_every_rounds=10)
    )
    expected = wayfare.run(small, "mads", out=tmp_path / "whole", execution=execution)

    def cut(round_: int) -> None:
        if round_ == 35:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        wayfare.run(small, "mads", out=tmp_path / "cut", execution=execution, on_round=cut)
    found = wayfare.run(small, "mads", out=tmp_path / "cut", execution=execution)
    assert torch.equal(found.model, expected.model)
    assert all(np.array_equal(column, expected.contacts[name]) for name, column in found.contacts.items())
