"""Accounts and upload rules at numbers that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import wayfare
from wayfare.control.auto_weight import Demand, Experience
from wayfare.control.closed_form import optimal_power_watts
from wayfare.control.rate_distortion import Problem, Profile, Width, uniform_profile
from wayfare.errors import ScenarioError
from wayfare.methods import NOTHING, SKIPPED, Encounter, Upload, make_method
from wayfare.methods.account import Account, Meeting, meet, pay
from wayfare.methods.mads_rd import MadsRd
from wayfare.methods.parts import paper_demand
from wayfare.methods.published.mobility_aware import MobilityAware
from wayfare.methods.uploads import (
    Fitting,
    Mads,
    Whole,
    min_upload_joules,
    power_and_allowance,
    send_dense,
    send_top_k,
)
from wayfare.radio import Link
from wayfare.scenario.model import Control

# A signal of 3 to 1 in 1 kHz carries 2,000 bits a second.
LINK = Link(
    bandwidth_hz=1e3, max_power_watts=0.2, parameters=50, bits_per_entry=40.0, dense_bits=1700.0, statistics_bits=100.0
)
MEETING = Encounter(
    contact_s=0.5,
    gain_per_watt=15.0,
    staleness_rounds=4,
    update_norm_sq=7.0,
    backlog_joules=0.5,
    spent_joules=0.75,
    budget_joules=1.0,
    round=10,
    rounds=100,
    met_s=2.0,
    contacts=5,
)


def test_an_account_pays_its_pace_once_a_round() -> None:
    account = Account(budget_joules=10.0, spent_joules=4.0, backlog_joules=0.75, backlog_round=4, met_s=1.5, contacts=2)
    assert account.left_joules == 6.0
    meeting = Meeting(round=7, contact_s=0.5, gain_per_watt=15.0, device=3, samples=9)
    terms = {"rounds": 100, "update_norm_sq": 7.0, "staleness_rounds": 4, "profile": None}
    now, seen = meet(account, meeting, Fitting(), LINK, **terms)
    # Three rounds at a tenth of a joule.
    assert now.backlog_joules == seen.backlog_joules == pytest.approx(0.45)
    assert (now.backlog_round, now.experience.contacts) == (7, 1)
    assert (seen.device, seen.samples, seen.met_s, seen.contacts, seen.left_joules) == (3, 9, 1.5, 2, 6.0)
    paid = pay(now, seen, 0.3)
    assert paid.backlog_joules == pytest.approx(0.45 + 0.3 - 0.1)
    assert (paid.spent_joules, paid.backlog_round) == (pytest.approx(4.3), 8)
    # A second upload of the round finds its pace paid.
    again, seen = meet(paid, meeting, Fitting(), LINK, **terms)
    assert (again.backlog_joules, again.backlog_round) == (paid.backlog_joules, 8)
    assert pay(again, seen, 0.3).backlog_joules == pytest.approx(0.65 + 0.3)
    assert Account(budget_joules=1.0) == Account(
        budget_joules=1.0,
        spent_joules=0.0,
        backlog_joules=0.0,
        backlog_round=1,
        met_s=0.0,
        contacts=0,
        received_round=0,
    )
    assert (Meeting(round=1, contact_s=1.0, gain_per_watt=1.0).device, MEETING.device) == (0, 0)
    assert replace(MEETING, round=12).next_contact_rounds == 2.4


def test_an_upload_lasts_as_long_as_its_energy() -> None:
    upload = Upload(entries=1, bits=1.0, power_watts=0.2, energy_joules=0.05)
    assert upload.airtime_s == pytest.approx(0.25)
    assert replace(upload, power_watts=0.0).airtime_s == 0.0
    assert (upload.completes, upload.value_bits, upload.max_entries, upload.max_joules) == (
        True,
        None,
        None,
        math.inf,
    )
    for nothing, completes in ((NOTHING, True), (SKIPPED, False)):
        assert (nothing.entries, nothing.bits, nothing.power_watts, nothing.energy_joules) == (0, 0.0, 0.0, 0.0)
        assert nothing.completes == completes


def test_as_many_entries_as_fit() -> None:
    full = send_top_k(MEETING, LINK, 0.2)
    # 1,000 bits, of which 100 are for statistics: 22 entries.
    assert (full.entries, full.bits, full.power_watts) == (22, 22 * 40 + 100, 0.2)
    assert full.energy_joules == pytest.approx(0.2 * 980 / 2000)
    poor = send_top_k(MEETING, LINK, 0.2, allowance_joules=0.05)
    assert (poor.entries, poor.energy_joules) == (10, pytest.approx(0.05))
    assert send_top_k(MEETING, LINK, 0.0) is send_top_k(MEETING, LINK, 0.2, 0.0) is NOTHING
    short = send_top_k(replace(MEETING, contact_s=0.06), LINK, 0.2)
    assert (short.entries, short.bits, short.energy_joules) == (0, 0.0, 0.0)


def test_everything_or_nothing() -> None:
    # 1,700 bits take 0.85 s.
    whole = send_dense(replace(MEETING, contact_s=0.9), LINK, 0.2)
    assert (whole.entries, whole.bits, whole.completes) == (50, 1700.0, True)
    assert whole.energy_joules == pytest.approx(0.17)
    for settings in ((replace(MEETING, contact_s=0.8), math.inf, 0.16), (replace(MEETING, contact_s=0.9), 0.1, 0.1)):
        encounter, allowance_joules, burnt_joules = settings
        cut = send_dense(encounter, LINK, 0.2, allowance_joules)
        assert (cut.entries, cut.bits, cut.completes, cut.power_watts) == (0, 0.0, False, 0.2)
        assert cut.energy_joules == pytest.approx(burnt_joules)
        assert send_dense(encounter, LINK, 0.2, allowance_joules, fitting=True) is SKIPPED
    assert send_dense(MEETING, LINK, 0.0) is send_dense(MEETING, LINK, 0.2, 0.0) is SKIPPED
    exactly = replace(MEETING, contact_s=1700.0 / LINK.rate_bps(0.2, 15.0))
    assert send_dense(exactly, LINK, 0.2, fitting=True).completes


def test_power_and_allowance_of_every_rule() -> None:
    assert power_and_allowance("unlimited", MEETING, LINK) == (0.2, math.inf)
    assert power_and_allowance("greedy", MEETING, LINK) == (0.2, 0.25)
    # 0.25 J for 0.2 s a round in the 91 rounds that are left.
    assert power_and_allowance("paced", MEETING, LINK) == (pytest.approx(0.25 / 18.2), 0.25)
    last = replace(MEETING, round=100)
    assert power_and_allowance("paced", last, LINK) == (0.2, 0.25)
    longer = replace(MEETING, round=100, contact_s=5.0)
    assert power_and_allowance("paced", longer, LINK) == (0.05, 0.25)
    assert power_and_allowance("paced", replace(MEETING, spent_joules=2.0), LINK) == (0.0, -1.0)
    with pytest.raises(ScenarioError, match="needs a controller"):
        power_and_allowance("queue", MEETING, LINK)


def test_the_least_that_brings_anything_through() -> None:
    assert min_upload_joules("greedy", LINK, 6000.0) == pytest.approx(0.2 * 6000 / 60_000)
    assert min_upload_joules("paced", LINK, 6000.0) == min_upload_joules("unlimited", LINK, 6000.0) == 0.0
    assert Fitting().min_upload_joules(LINK) == pytest.approx(0.2 * 140 / 60_000)
    assert Whole().min_upload_joules(LINK) == pytest.approx(0.2 * 1700 / 60_000)
    assert Mads().min_upload_joules(LINK) == 0.0


def test_which_rules_look_at_time_and_at_the_end() -> None:
    assert (Fitting("paced").is_extendable(), Fitting("greedy").is_extendable()) == (False, True)
    assert (Whole("paced").is_extendable(), Whole("unlimited").is_extendable()) == (False, True)
    assert (Whole().uses_forecast(), Whole(fitting=True).uses_forecast(), Fitting().uses_forecast()) == (
        False,
        True,
        True,
    )
    assert (Mads().is_extendable(), MadsRd().is_extendable()) == (False, False)
    assert not make_method("fedmobile", wayfare.load()).is_extendable()
    assert make_method("afl-spar", wayfare.load()).is_extendable()
    assert not make_method("mads", wayfare.load()).is_extendable()


def test_mads_is_proposition_2_and_then_1() -> None:
    backlogged = replace(MEETING, backlog_joules=50.0)
    power_watts = float(
        optimal_power_watts(
            contact_s=0.5,
            gain_per_watt=15.0,
            staleness_rounds=4,
            update_norm_sq=7.0,
            backlog_joules=50.0,
            weight=0.1,
            bandwidth_hz=1e3,
            parameters=50,
            bits_per_entry=40.0,
            max_power_watts=0.2,
            statistics_bits=100.0,
        )
    )
    assert 0 < power_watts < 0.2
    assert Mads(Control(weight=0.1)).decide(backlogged, LINK) == send_top_k(backlogged, LINK, power_watts)


def test_mads_that_finds_its_weight_spends_no_more_than_is_left() -> None:
    rule = Mads(Control(weight="auto"))
    wanted = rule.demand(MEETING, LINK)
    assert wanted == paper_demand(MEETING, LINK)
    assert isinstance(wanted, Demand)
    seen = Experience().with_contact(wanted.usable_joules, wanted.worth)
    last = replace(MEETING, round=100, experience=seen)
    # The last contact takes all it can use, or all that is left.
    assert rule.decide(last, LINK).power_watts == 0.2
    poor = replace(last, spent_joules=0.96)
    assert rule.decide(poor, LINK).power_watts == pytest.approx(0.04 / 0.5)
    assert rule.decide(poor, LINK).energy_joules <= 0.04 * (1 + 1e-9)
    assert rule.decide(replace(last, spent_joules=1.0), LINK).entries == 0
    assert rule.decide(replace(last, update_norm_sq=0.0), LINK) is NOTHING


def two_widths() -> Profile:
    """Fifty entries, of which five hold most; an eighth of the bits costs a hundredth of them."""
    kept = np.array([0.0, 1.0, 5.0, 20.0, 50.0])
    widths = [
        Width(value_bits=32, bits=np.full(4, 32.0), lost=np.zeros(4)),
        Width(value_bits=4, bits=np.full(4, 4.0), lost=np.full(4, 0.01)),
    ]
    return Profile(kept=kept, captured=np.array([0.0, 0.3, 0.8, 0.95, 1.0]), widths=widths, overhead_bits=100.0)


@pytest.mark.parametrize("step", ["curve", "values", "progressive"])
def test_mads_rd_with_free_energy_sends_all_it_can(step: str) -> None:
    free = replace(MEETING, backlog_joules=0.0, profile=two_widths)
    found = MadsRd(Control(weight=0.1), step=step).decide(free, LINK)
    assert found.power_watts == pytest.approx(0.2)
    # 1,000 bits hold all 50 entries in 4 bits, but not in 32.
    assert (found.value_bits, found.entries) == (4, 50)
    assert found.bits <= 1000 * (1 + 1e-9)
    assert found.energy_joules == pytest.approx(0.2 * found.bits / 2000)
    assert found.max_entries == (50 if step == "progressive" else None)
    assert found.max_joules == math.inf


def test_mads_rd_by_index_keeps_32_bits() -> None:
    free = replace(MEETING, backlog_joules=0.0, profile=two_widths)
    found = MadsRd(Control(weight=0.1), step="index").decide(free, LINK)
    assert found.value_bits == 32
    assert 0 < found.entries < 50


def test_mads_rd_sends_nothing_for_no_worth_no_weight_or_no_energy() -> None:
    rule = MadsRd(Control(weight="auto"))
    seen = replace(MEETING, profile=two_widths)
    wanted = rule.demand(seen, LINK)
    # 3 theta |x|^2, and the contact as it is.
    assert isinstance(wanted, Problem)
    assert (wanted.value, wanted.contact_s, wanted.gain_per_watt) == (3 * 4 * 7.0, 0.5, 15.0)
    assert (wanted.bandwidth_hz, wanted.max_power_watts) == (1e3, 0.2)
    # However weak and short a contact is, it wants something.
    for little in ({"gain_per_watt": 0.5}, {"contact_s": 0.01}, {"update_norm_sq": 0.01}):
        assert rule.demand(replace(seen, **little), LINK) is not None
    experienced = replace(
        seen,
        round=100,
        experience=Experience().with_contact(wanted.usable_joules, wanted.worth, wanted.wanted_joules()),
    )
    some = rule.decide(experienced, LINK)
    assert some.entries > 0
    assert some.max_joules == 0.25
    # Half a joule of a budget is left, and still some is sent.
    assert rule.decide(replace(experienced, budget_joules=1.25), LINK).entries > 0
    for spent_joules in (1.0, 1.5):
        assert rule.decide(replace(experienced, spent_joules=spent_joules), LINK) is NOTHING
    for changes in ({"contact_s": 0.0}, {"gain_per_watt": 0.0}, {"update_norm_sq": 0.0}, {"update_norm_sq": math.inf}):
        assert rule.decide(replace(experienced, **changes), LINK) is NOTHING
    weightless = MadsRd(Control(weight=0.0))
    assert weightless.decide(replace(seen, backlog_joules=0.0), LINK) is NOTHING
    assert weightless.decide(replace(seen, backlog_joules=1.0), LINK) is NOTHING
    assert MadsRd(Control(weight=0.5)).demand(seen, LINK) == paper_demand(seen, LINK)


def test_mads_rd_without_a_look_at_the_update_takes_entries_as_alike() -> None:
    blind = MadsRd(Control(weight=0.1)).decide(replace(MEETING, backlog_joules=0.0), LINK)
    shown = MadsRd(Control(weight=0.1)).decide(
        replace(MEETING, backlog_joules=0.0, profile=lambda: uniform_profile(50, 100.0)), LINK
    )
    assert blind == shown


def test_more_is_worth_sending_at_most_threefold() -> None:
    """A contact too short for more than a little may last: then three times as much, or what is worth its energy."""
    rule = MadsRd(Control(weight=1e3), step="progressive")
    short = replace(MEETING, contact_s=0.075, backlog_joules=1e-9, profile=two_widths)
    found = rule.decide(short, LINK)
    assert 0 < found.entries < 10
    assert found.max_entries == 3 * found.entries


def test_a_mobility_aware_device_waits_for_a_better_contact() -> None:
    rule = MobilityAware()
    wanted = rule.demand(MEETING, LINK)
    assert wanted is not None
    # 1,000 bits in half a second at full power.
    assert (wanted.worth, wanted.usable_joules) == (pytest.approx(1000), pytest.approx(0.1))
    seen = Experience().with_contact(0.1, 1000 * math.e).with_contact(0.1, 1000 / math.e)
    # 45 contacts of 0.4 s and this one are expected: 18.5 s, of which 0.25 J pay for 1.25 s.
    share = 0.25 / (0.2 * (0.5 + 45 * 0.4))
    bound = math.log(1000) - NormalDist().inv_cdf(share)
    for factor, skips in ((1.01, False), (0.99, True)):
        gain_per_watt = (2 ** (factor * math.exp(bound) / 500) - 1) / 0.2
        encounter = replace(MEETING, experience=seen, gain_per_watt=gain_per_watt)
        assert (rule.decide(encounter, LINK) is SKIPPED) == skips
    # With energy for all, and without any, it does what everybody does.
    enough_joules = 0.2 * (0.5 + 45 * 0.4)
    for budget_joules, spent_joules in ((50.0, 0.75), (1.0, 1.0), (1.5 * enough_joules, 0.0), (enough_joules, 0.0)):
        encounter = replace(MEETING, experience=seen, budget_joules=budget_joules, spent_joules=spent_joules)
        assert rule.decide(encounter, LINK) == send_top_k(encounter, LINK, 0.2, encounter.left_joules)
    # In the last round the contact itself is all that is expected: half a second, which 0.05 J pay half of.
    last = replace(MEETING, experience=seen, round=100, spent_joules=0.95)
    for worth, skips in ((1010, True), (990, False)):
        experience = Experience().with_contact(0.1, worth * math.e).with_contact(0.1, worth / math.e)
        assert (rule.decide(replace(last, experience=experience), LINK) is SKIPPED) == skips
    # Half a bit is worth less than what was seen, and nothing was seen yet.
    poor = replace(MEETING, contact_s=0.5 / 2000)
    assert rule.decide(replace(poor, experience=seen), LINK) is SKIPPED
    assert rule.decide(replace(poor, experience=Experience()), LINK) is not SKIPPED
    assert rule.demand(poor, LINK) is not None
    assert rule.demand(replace(MEETING, contact_s=0.0), LINK) is None
    assert rule.decide(replace(MEETING, contact_s=0.0, met_s=0.0), LINK).entries == 0


def test_an_encounter_is_the_same_whatever_shows_the_update() -> None:
    assert replace(MEETING, profile=two_widths) == MEETING
    assert "profile" not in repr(MEETING)
