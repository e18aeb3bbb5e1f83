"""A device trains only after its statistics are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from tests.field.test_parity import fleet_of
from tests.methods.test_class_statistics import Watching
from tests.simulator.golden_cases import Case

import wayfare
from wayfare.device import delivers_first
from wayfare.engine import ENGINES, Burst, LocalTraining, Policy
from wayfare.engine.reference import Reference
from wayfare.methods import make_method
from wayfare.methods.encounter import Encounter, Upload
from wayfare.methods.statistics import SumsFirst
from wayfare.radio import Link
from wayfare.simulator import Simulation, SimulationState
from wayfare.world import World, draw_world

SCHEME = "mads-rd:from-statistics"
# Several contacts deliver the statistics of a device.
NARROW = ("radio.bandwidth_hz=30e3",)
SET = ("learning.backbone=efficientnet-lite0", "rounds=120", "fleet.devices=4", "learning.evaluate_every_rounds=60")


@cache
def world(*changes: str) -> World:
    return draw_world(wayfare.load("fashion-small", [*SET, *changes]), 0)


class Noting(Reference):
    """Notes the rounds that every device trains."""

    def __init__(self, training: LocalTraining) -> None:
        super().__init__(training)
        self.rounds = trained = dict[int, set[int]]()
        NOTED.append(trained)

    def run(self, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        for burst in bursts:
            rounds = range(burst.first_round, burst.first_round + burst.rounds)
            self.rounds.setdefault(burst.device, set()).update(rounds)
        super().run(models, bursts)


NOTED: list[dict[int, set[int]]] = []


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, set[int]]]:
    """The rounds that every device trains, of every simulation."""
    NOTED.clear()
    monkeypatch.setitem(ENGINES, "reference", Noting)  # type: ignore[arg-type]
    return NOTED


@pytest.fixture
def delivering(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The rounds of the contacts in which a device has statistics left."""
    found: dict[int, list[int]] = {}
    decide = SumsFirst.decide

    def noting(self: SumsFirst, encounter: Encounter, link: Link) -> Upload:
        if encounter.sums_left:
            found.setdefault(encounter.device, []).append(encounter.round)
        return decide(self, encounter, link)

    monkeypatch.setattr(SumsFirst, "decide", noting)
    return found


def simulation(where: World, *, scheme: str = SCHEME, policy: Policy = "ahead") -> Simulation:
    method = make_method(scheme, where.scenario)
    return Simulation(where, method, Watching(), engine="reference", policy=policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["stepwise", "lazy", "ahead"])
def test_a_device_trains_only_after_its_statistics_are_delivered(
    policy: Policy, trained: list[dict[int, set[int]]], delivering: dict[int, list[int]]
) -> None:
    where = world(*NARROW)
    simulation(where, policy=policy).run()
    (rounds,) = trained
    assert max(map(len, delivering.values())) > 2
    for device in range(4):
        contacts = set(where.meets.round[where.meets.device == device].tolist())
        last = max(delivering[device])
        expected = set(range(last + 1, max(contacts) + 1))
        # A trainer may go on after the last contact of a device; nothing reads those steps.
        assert {round_ for round_ in rounds.get(device, set()) if round_ <= max(contacts)} == expected


def test_when_a_burst_runs_makes_no_difference() -> None:
    models = [simulation(world(*NARROW), policy=policy).run().model for policy in ("stepwise", "lazy", "ahead")]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_a_run_resumes_to_the_same_bits_while_some_devices_wait() -> None:
    where, states = world(*NARROW), list[SimulationState]()

    class Saving(Watching):
        def on_round(self, round_: int) -> None:
            if round_ % 10 == 0:
                states.append(run.state().copied(torch.device("cpu")))

    run = Simulation(where, make_method(SCHEME, where.scenario), Saving(), engine="reference")  # type: ignore[arg-type]
    expected = run.run()
    link = simulation(where)._world.link
    waiting = [[delivers_first(device, link) for device in state.devices] for state in states]
    assert any(0 < sum(each) < 4 for each in waiting)
    for state in states:
        resumed = simulation(where)
        resumed.restore(state)
        assert torch.equal(resumed.run().model, expected.model)


def test_a_device_that_has_no_statistics_waits_for_nothing(
    trained: list[dict[int, set[int]]], delivering: dict[int, list[int]]
) -> None:
    """Two devices hold too few samples of every class."""
    where = world("learning.partition.concentration=100")
    counts = [int(where.task.train_labels[torch.from_numpy(held)].bincount().max()) for held in where.held]  # type: ignore[attr-defined]
    least = sorted(counts)[1] + 1
    assert sorted(counts)[1] < max(counts)
    simulation(where, scheme=f"{SCHEME} + class-statistics(min_count={least})").run()
    (rounds,) = trained
    for device, most in enumerate(counts):
        assert (device in delivering) == (most >= least)
        assert (1 in rounds[device]) == (most < least)


def test_the_field_waits_as_the_simulator_does(tmp_path) -> None:  # type: ignore[no-untyped-def]
    changes = "rounds=60 radio.bandwidth_hz=30e3"
    assert fleet_of(Case(SCHEME, changes, "reference"), tmp_path).recorded > 0
