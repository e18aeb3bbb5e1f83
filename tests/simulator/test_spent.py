"""Devices that can never send again stop training; results are unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_simulator import Notes
from wayfare.engine import Burst
from wayfare.engine.reference import Reference
from wayfare.methods import Encounter, make_method
from wayfare.methods.uploads import MAX_BPS_PER_HZ, min_upload_joules
from wayfare.radio import Link
from wayfare.simulator import Simulation
from wayfare.world import draw_world

GREEDY = ["afl-spar", "afl", "afl:fitting", "fedmobile:billed", "fedasync", "sfl-spar"]
LINK = Link(bandwidth_hz=15e3, max_power_watts=0.2, parameters=84_618, bits_per_entry=48.37, dense_bits=84_618 * 32.0)


@pytest.mark.parametrize("name", GREEDY)
def test_a_run_is_the_same_with_less_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = draw_world(wayfare.load("fashion-small", [*SMALL, "rounds=200", "fleet.energy_total_joules=4"]), 0)
    scheme, steps = make_method(name, world.scenario), [0]
    run = Reference.run

    def count(self: Reference, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        steps[-1] += sum(burst.rounds for burst in bursts)
        run(self, models, bursts)

    monkeypatch.setattr(Reference, "run", count)
    notes, always = Notes(), Notes()
    outcome = Simulation(world, scheme, notes, engine="reference").run()
    monkeypatch.setattr(type(scheme.upload), "min_upload_joules", lambda self, link: 0.0)
    steps.append(0)
    full = Simulation(world, scheme, always, engine="reference").run()
    assert 0 < steps[0] < steps[1]
    assert torch.equal(outcome.model, full.model)
    assert notes.evaluations == always.evaluations
    assert notes.relays == always.relays
    # What a device that stopped would have learned is all that differs.
    assert [replace(event, update_norm_sq=0.0) for event in notes.contacts] == [
        replace(event, update_norm_sq=0.0) for event in always.contacts
    ]


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("gain_per_watt", [1e3, 1e9, 2.0**MAX_BPS_PER_HZ / 0.2])
def test_with_less_than_that_nothing_gets_through_and_with_more_it_may(name: str, gain_per_watt: float) -> None:
    scheme = make_method(name, wayfare.load("fashion-small"))

    def entries(left_joules: float) -> int:
        encounter = Encounter(
            contact_s=1e9,
            gain_per_watt=gain_per_watt,
            staleness_rounds=3,
            update_norm_sq=1.0,
            backlog_joules=0.0,
            spent_joules=5.0 - left_joules,
            budget_joules=5.0,
            round=7,
            rounds=10,
            met_s=1e9,
        )
        return scheme.upload.decide(encounter, LINK).entries

    least = scheme.upload.min_upload_joules(LINK)
    assert entries(0.999 * least) == 0
    if gain_per_watt > 1e10:
        assert entries(1.001 * least) > 0


@pytest.mark.parametrize("name", ["optimal", "afl:unlimited", "afl-spar:paced", "mads", "fedmobile"])
def test_nobody_else_ever_stops(name: str) -> None:
    world = draw_world(wayfare.load("fashion-small", [*SMALL, "fleet.energy_total_joules=0.1"]), 0)
    simulation = Simulation(world, make_method(name, world.scenario), Notes())
    simulation.run()
    assert simulation.state().trainer.retired == []


def test_no_other_rule_has_a_least() -> None:
    assert min_upload_joules("paced", LINK, 1e6) == min_upload_joules("unlimited", LINK, 1e6) == 0.0
    assert min_upload_joules("greedy", LINK, 15e3 * MAX_BPS_PER_HZ) == pytest.approx(0.2)
    assert math.isclose(make_method("mads", wayfare.load("fashion-small")).upload.min_upload_joules(LINK), 0.0)
