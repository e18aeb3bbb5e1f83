"""Contacts that are longer or shorter than forecast, and uploads that tolerate it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.simulator.test_checkpoint import assert_same, taken_up, undisturbed
from tests.simulator.test_simulator import Notes, simulate
from wayfare import device as devices
from wayfare.contacts import Opportunities, forecast_s
from wayfare.device import DeviceState, Meeting, Offer, Terms
from wayfare.errors import ScenarioError
from wayfare.methods import make_method
from wayfare.radio import Link
from wayfare.records.checkpoints import read_checkpoint
from wayfare.scenario import Scenario
from wayfare.scenario.exchange import Contacts
from wayfare.simulator import Checks, Simulation
from wayfare.world import draw_world

LINK = Link(bandwidth_hz=15e3, max_power_watts=0.2, parameters=20_000, bits_per_entry=46.3, dense_bits=640_000.0)


def unsure(small: Scenario, error: float, weight: float | str = "auto") -> Scenario:
    control = small.control.model_copy(update={"weight": weight})
    return small.model_copy(update={"contacts": Contacts(forecast_error=error), "control": control})


def meets(count: int) -> Opportunities:
    return Opportunities(
        round=np.arange(1, count + 1),
        device=np.arange(count) % 7,
        contact_s=np.full(count, 3.0),
        distance_m=np.ones(count),
    )


def test_forecasts_are_right_on_average_and_off_by_their_error() -> None:
    factors = forecast_s(meets(40_000), 0.5, 0) / 3.0
    assert factors.mean() == pytest.approx(1.0, abs=0.02)
    assert factors.std() == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(forecast_s(meets(50), 0.0, 0), meets(50).contact_s)


def test_a_longer_run_begins_with_the_same_forecasts() -> None:
    assert np.array_equal(forecast_s(meets(700), 0.3, 4)[:70], forecast_s(meets(70), 0.3, 4))


@pytest.mark.parametrize("value", ["-0.1", "11.0", '"much"'])
def test_an_error_beyond_reason_is_refused(value: str) -> None:
    with pytest.raises(ScenarioError, match=r"contacts\.forecast_error"):
        wayfare.load("fashion-small", [f"contacts.forecast_error={value}"])


def terms_of(name: str = "mads-rd", weight: float | str = 1e-3) -> Terms:
    method = make_method(name, wayfare.load(overrides=[f"control.weight={weight}"]))
    return Terms(method=method, link=LINK, rounds=1000)


def offer(
    seed: int = 0, contact_s: float = 5.0, name: str = "mads-rd", weight: float | str = 1e-3
) -> tuple[Offer, wayfare.Upload]:
    scheme = make_method(name, wayfare.load(overrides=[f"control.weight={weight}"]))
    update = torch.from_numpy(np.random.default_rng(seed).standard_t(4, 20_000).astype(np.float32))
    state = DeviceState(
        received=torch.zeros(20_000),
        received_round=0,
        memory=torch.zeros(20_000),
        budget_joules=20.0,
        backlog_joules=0.2,
    )
    found = devices.make_offer(
        state,
        update,
        Meeting(round=10, contact_s=contact_s, gain_per_watt=1e4),
        terms_of(name, weight),
        staleness_rounds=9,
    )
    return found, scheme.upload.decide(found.encounter, LINK)


@pytest.mark.parametrize("weight", [1e-3, "auto"])
@pytest.mark.parametrize("name", ["mads-rd", "mads-rd:index", "mads-rd:values"])
def test_an_upload_costs_its_encoding_and_no_more_than_the_contact_carries(name: str, weight: float | str) -> None:
    for contact_s in (0.2, 1.0, 5.0, 30.0):
        begun, upload = offer(contact_s=contact_s, name=name, weight=weight)
        sending = devices.transmit(begun, upload, terms_of())
        assert sending.sent is not None
        rate_bps = LINK.rate_bps(upload.power_watts, 1e4)
        assert sending.upload.bits <= contact_s * rate_bps * (1 + 1e-6)
        if sending.upload.entries:
            assert sending.upload.energy_joules == pytest.approx(upload.power_watts * sending.upload.bits / rate_bps)
        assert sending.state.spent_joules == sending.upload.energy_joules


@pytest.mark.parametrize("name", ["mads", "mads-rd"])
def test_who_plans_too_long_an_upload_loses_all_of_it(name: str) -> None:
    begun, upload = offer(name=name)
    sending = devices.transmit(begun, upload, terms_of(), lasts_s=2.0)
    assert upload.airtime_s > 2.0
    assert sending.sent is None
    assert not sending.upload.completes
    assert sending.upload.energy_joules == pytest.approx(2.0 * upload.power_watts)
    assert sending.state.memory is begun.state.memory
    assert sending.state.met_s == pytest.approx(begun.state.met_s - 3.0)


def test_pieces_that_arrived_count_and_more_arrive_the_longer_it_lasts() -> None:
    begun, upload = offer(name="mads-rd:progressive")
    entries, energies = [], []
    for lasts_s in (0.0, 0.3, 1.0, 2.0, 5.0, 8.0, 100.0):
        sending = devices.transmit(begun, upload, terms_of(), lasts_s=lasts_s)
        assert sending.sent is not None
        assert len(sending.sent) == sending.upload.entries
        restored = sending.state.memory.index_add(0, sending.sent.indices, sending.sent.values)
        torch.testing.assert_close(restored, begun.update, rtol=1e-6, atol=1e-6)
        assert sending.upload.energy_joules <= upload.power_watts * lasts_s * (1 + 1e-9)
        entries.append(sending.upload.entries)
        energies.append(sending.upload.energy_joules)
    assert entries == sorted(entries)
    assert energies == sorted(energies)
    assert entries[0] == 0 < entries[2] < entries[4]
    # Beyond what is worth its energy nothing is sent, however long the contact lasts.
    assert not sending.cut
    assert entries[-1] == upload.max_entries


@pytest.mark.parametrize("weight", [1e-3, "auto"])
def test_all_planned_pieces_arrive_where_the_forecast_is_exact(weight: float | str) -> None:
    for contact_s in (0.2, 0.5, 1.0, 2.0, 5.0, 30.0):
        begun, upload = offer(contact_s=contact_s, name="mads-rd:progressive", weight=weight)
        sending = devices.transmit(begun, upload, terms_of())
        assert not sending.cut
        rate_bps = LINK.rate_bps(upload.power_watts, 1e4)
        assert sending.upload.bits <= contact_s * rate_bps
        assert sending.upload.bits >= 0.9 * contact_s * rate_bps or sending.upload.entries == LINK.parameters
        assert sending.upload.energy_joules == pytest.approx(upload.power_watts * sending.upload.bits / rate_bps)
        # A little more time brings no piece through, and costs its energy: the device cannot know that it ends.
        longer = devices.transmit(begun, upload, terms_of(), lasts_s=contact_s * (1 + 1e-6))
        assert longer.upload.entries == sending.upload.entries
        assert longer.cut == (sending.upload.entries < (upload.max_entries or 0))


@pytest.mark.parametrize("lasts_s", [5.0, 100.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.1])
def test_pieces_beyond_the_energy_left_are_not_begun(share: float, lasts_s: float) -> None:
    begun, upload = offer(name="mads-rd:progressive", weight="auto")
    poor = replace(upload, max_joules=share * upload.energy_joules)
    sending = devices.transmit(begun, poor, terms_of(), lasts_s=lasts_s)
    assert 0 < sending.upload.energy_joules <= poor.max_joules * (1 + 1e-9)
    assert not sending.cut


@pytest.mark.parametrize("name", ["mads", "mads-rd", "mads-rd:progressive", "afl-spar:paced"])
def test_nothing_is_lost_or_counted_twice_where_contacts_end_early(name: str, small: Scenario) -> None:
    scenario = unsure(small, 0.5)
    notes = Notes()
    scheme = make_method(name, scenario)
    Simulation(draw_world(scenario, 0), scheme, notes, checks=Checks(paranoid=True)).run()
    failed = [event for event in notes.contacts if not event.completed]
    assert bool(failed) == (name != "mads-rd:progressive")
    assert all(event.entries == 0 for event in failed)


def test_who_does_not_plan_by_time_is_not_harmed(small: Scenario) -> None:
    sure, doubtful = (simulate(draw_world(unsure(small, error), 0), "afl") for error in (0.0, 0.5))
    assert sure[1] == doubtful[1]
    assert torch.equal(sure[0].model, doubtful[0].model)


def test_auto_keeps_to_its_budget_whatever_contacts_do(small: Scenario) -> None:
    for name in ("mads-rd", "mads-rd:progressive", "mads-rd:values"):
        world = draw_world(unsure(small, 0.6), 1)
        outcome, _ = simulate(world, name)
        for state in outcome.states:
            assert state.spent_joules <= state.budget_joules * (1 + 1e-9)


def test_records_have_the_true_length_of_a_contact(small: Scenario) -> None:
    world = draw_world(unsure(small, 0.4), 0)
    _, notes = simulate(world, "mads-rd:progressive")
    assert [event.contact_s for event in notes.contacts] == world.meets.contact_s.tolist()
    assert not math.isclose(world.forecast_s[0], world.meets.contact_s[0])


@pytest.mark.parametrize("name", ["mads-rd", "mads-rd:progressive"])
def test_a_run_that_finds_its_weight_goes_on_to_the_same_bits(name: str, small: Scenario, tmp_path: Path) -> None:
    world = draw_world(unsure(small, 0.3), 1)
    expected = undisturbed(world, name, tmp_path, (33,), "stacked")
    state = read_checkpoint(tmp_path, expected[1].saved[0])
    assert any(device.experience.wanted_joules for device in state.devices)
    assert_same(taken_up(world, name, state, "stacked"), expected, 33)
