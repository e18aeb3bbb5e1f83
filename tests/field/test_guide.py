"""What a device expects of a contact, by the plan or by what it has measured."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.field.parts import METHOD
from wayfare.device import DeviceState, Terms
from wayfare.field.runtime.guide import ByExperience, ByPlan, Sighting, chunk_bytes_at, seconds_in_range
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.stores import Progress
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.world import draw_world

LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=1000, bits_per_entry=42.0, dense_bits=32000.0)
STATE = DeviceState(received=torch.zeros(1), received_round=0, memory=torch.zeros(1), budget_joules=1.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_seconds_in_range_are_when_the_distance_reaches_the_range() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        seen = Sighting(
            position_m=tuple(rng.uniform(-60, 60, 2)),
            velocity_mps=tuple(rng.uniform(-20, 20, 2)),
            server_position_m=(0.0, 0.0),
            server_velocity_mps=tuple(rng.uniform(-5, 5, 2)),
        )
        away = np.subtract(seen.velocity_mps, seen.server_velocity_mps)
        times = np.linspace(0, 200, 200_001)
        inside = np.hypot(*(np.array(seen.position_m)[:, None] + away[:, None] * times)) <= 100.0
        until = times[np.argmin(inside)] if not inside.all() else math.inf
        assert seconds_in_range(seen) == pytest.approx(until, abs=2e-3) or until == math.inf


def test_a_device_out_of_range_has_no_time_and_one_that_stands_has_all() -> None:
    at = Sighting(position_m=(150.0, 0.0), velocity_mps=(-10.0, 0.0), server_position_m=(0.0, 0.0))
    assert seconds_in_range(at) == 0.0
    assert seconds_in_range(replace(at, position_m=(5.0, 0.0), velocity_mps=(0.0, 0.0))) == math.inf


def test_by_experience_rate_and_time_are_those_measured() -> None:
    clock = Clock()
    guide = ByExperience(LINK, clock=clock)
    for seconds in (2.0, 4.0, 6.0):
        guide.in_reach()
        clock.now_s += seconds
        guide.measured(bits=3e6 * seconds, seconds=seconds)
        guide.out_of_reach()
        clock.now_s += 60
    guide.in_reach()
    occasion = guide.occasion(Progress(trained_round=7), STATE)
    assert occasion.contact_s == pytest.approx(4.0)
    # The channel is one that carries at full power what was measured.
    assert LINK.rate_bps(LINK.max_power_watts, occasion.gain_per_watt) == pytest.approx(3e6)
    assert occasion.chunk_bytes == chunk_bytes_at(3e6) == 37500
    assert occasion.round == 7
    clock.now_s += 3
    assert guide.occasion(Progress(trained_round=7), STATE).contact_s == pytest.approx(1.5)
    clock.now_s += 20
    assert guide.occasion(Progress(trained_round=7), STATE).contact_s == pytest.approx(11.5)


def test_a_sighting_outweighs_experience_and_rates_beyond_any_radio_are_cut() -> None:
    seen = Sighting(position_m=(0.0, 0.0), velocity_mps=(10.0, 0.0), server_position_m=(0.0, 0.0))
    guide = ByExperience(LINK, sighting=lambda: seen)
    guide.measured(1e12, 1.0)
    occasion = guide.occasion(Progress(), STATE)
    assert occasion.contact_s == pytest.approx(10.0)
    assert math.isfinite(occasion.gain_per_watt)
    assert occasion.chunk_bytes == 512 << 10


def test_exchanges_in_a_contact_keep_their_distance_and_no_two_share_a_round() -> None:
    clock = Clock()
    guide = ByExperience(LINK, every_s=10.0, clock=clock)
    guide.in_reach()
    assert guide.occasion(Progress(), STATE) is not None
    guide.exchanged()
    assert guide.occasion(Progress(), STATE) is None
    clock.now_s += 10.1
    later = replace(STATE, received_round=9, backlog_round=11)
    assert guide.occasion(Progress(trained_round=5, cut_round=9), later).round == 11
    guide.exchanged()
    guide.out_of_reach()
    guide.in_reach()
    assert guide.occasion(Progress(trained_round=5, cut_round=11), later).round == 12


def test_a_device_with_a_number_of_steps_ends_after_their_exchange() -> None:
    guide = ByExperience(LINK, steps=10)
    assert guide.trains_until(Progress(), STATE) == 10
    assert not guide.is_over(Progress(trained_round=10))
    assert not guide.is_over(Progress(trained_round=10, cut_round=10, finished_round=9))
    assert guide.is_over(Progress(trained_round=10, cut_round=10, finished_round=10))


def test_a_device_without_a_new_model_stops_after_so_many_steps() -> None:
    guide = ByExperience(LINK, max_local_steps=50)
    assert guide.trains_until(Progress(trained_round=10**6), replace(STATE, received_round=200)) == 250
    assert ByExperience(LINK, max_local_steps=50, steps=220).trains_until(
        Progress(), replace(STATE, received_round=200)
    ) == 220  # fmt: skip


def test_by_plan_contacts_come_in_order_with_their_own_channels(small: Scenario) -> None:
    world = draw_world(small, 0)
    device = int(world.meets.device[0])
    guide, progress, rounds = ByPlan(world, device, METHOD.upload), Progress(), []
    while not guide.is_over(progress):
        until = guide.trains_until(progress, STATE)
        assert guide.occasion(progress, STATE) is None
        progress = replace(progress, trained_round=until)
        occasion = guide.occasion(progress, STATE)
        row = np.flatnonzero((world.meets.device == device) & (world.meets.round == occasion.round))[0]
        assert occasion.contact_s == world.meets.contact_s[row]
        assert occasion.gain_per_watt == world.gains_per_watt[row]
        rounds.append(occasion.round)
        progress = replace(progress, finished_round=occasion.round)
    assert rounds == world.meets.round[world.meets.device == device].tolist()
    assert guide.trains_until(progress, STATE) == progress.trained_round


def test_budgets_hold_for_every_period_and_the_pace_stays() -> None:
    radio = Radio(terms=Terms(method=METHOD, link=LINK, rounds=100), period_joules=4.0)
    for round_, periods in ((1, 1), (100, 1), (101, 2), (1000, 10)):
        state, terms = radio.in_period(STATE, round_)
        assert (state.budget_joules, terms.rounds) == (4.0 * periods, 100 * periods)
    planned = Radio(terms=radio.terms)
    assert planned.in_period(STATE, 1000) == (STATE, radio.terms)
