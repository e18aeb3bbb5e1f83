"""The automatic weight keeps its promises on fleets with drawn norms instead of training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.control.auto_weight import NO_EXPERIENCE, Demand, Experience, demand, fitting_power_watts
from wayfare.methods import Encounter, make_method
from wayfare.radio import Link
from wayfare.scenario.model import Control, Scenario
from wayfare.streams import Stream, generator

LINK = Link(bandwidth_hz=15e3, max_power_watts=0.2, parameters=84_618, bits_per_entry=48.37, dense_bits=84_618 * 32.0)
ROUNDS = 1000


def contacts(
    number: int, mean_gap_rounds: float, contact_s: float, scale: float = 1.0
) -> list[tuple[int, float, float, float]]:
    """Rounds, lengths, gains and norms of one device's contacts."""
    rng = generator(number, Stream.MONTE_CARLO, 7)
    rounds = np.unique(
        np.cumsum(1 + rng.exponential(mean_gap_rounds - 1, int(3 * ROUNDS / mean_gap_rounds) + 5)).astype(int)
    )
    rounds = rounds[rounds <= ROUNDS]
    count = len(rounds)
    # Norms fall as the model learns, and are spread like those of real runs.
    norms = scale * 40 * np.exp(0.7 * rng.standard_normal(count)) * (1.5 - rounds / ROUNDS)
    return list(
        zip(
            rounds.tolist(),
            rng.exponential(contact_s, count).tolist(),
            (10 ** rng.uniform(4, 7, count)).tolist(),
            norms.tolist(),
            strict=True,
        )
    )


def spend(
    meetings: list[tuple[int, float, float, float]], budget_joules: float, link: Link = LINK
) -> tuple[list[float], list[float]]:
    """Energies and powers of a device under `auto`, by the scheme itself."""
    scheme = make_method("mads", Scenario(control=Control(weight="auto")))
    experience, spent, last, met_s = NO_EXPERIENCE, 0.0, 0, 0.0
    energies, powers = [], []
    for round_, contact_s, gain, norm in meetings:
        met_s += contact_s
        wanted = demand(
            link, contact_s=contact_s, gain_per_watt=gain, staleness_rounds=round_ - last, update_norm_sq=norm
        )
        experience = experience.with_contact(wanted.usable_joules if wanted else 0.0, wanted.worth if wanted else 0.0)
        upload = scheme.upload.decide(
            Encounter(
                contact_s=contact_s,
                gain_per_watt=gain,
                staleness_rounds=round_ - last,
                update_norm_sq=norm,
                backlog_joules=0.0,
                spent_joules=spent,
                budget_joules=budget_joules,
                round=round_,
                rounds=ROUNDS,
                met_s=met_s,
                experience=experience,
            ),
            link,
        )
        last, spent = round_, spent + upload.energy_joules
        energies.append(upload.energy_joules)
        powers.append(upload.power_watts)
    return energies, powers


def usable_joules(meetings: list[tuple[int, float, float, float]], link: Link = LINK) -> float:
    """What the contacts could use at the largest power that buys something."""
    found = (
        demand(link, contact_s=contact_s, gain_per_watt=gain, staleness_rounds=1, update_norm_sq=norm)
        for _, contact_s, gain, norm in meetings
    )
    return sum(wanted.usable_joules for wanted in found if wanted)


@pytest.mark.parametrize("budget_joules", [3.0, 10.0, 30.0, 200.0])
@pytest.mark.parametrize(("gap_rounds", "contact_s"), [(60.0, 26.0), (16.0, 7.0), (9.0, 3.5), (3.0, 1.0)])
def test_a_fleet_uses_its_budget_and_no_device_more_than_its_own(
    gap_rounds: float, contact_s: float, budget_joules: float
) -> None:
    there = used = 0.0
    for number in range(12):
        meetings = contacts(number, gap_rounds, contact_s)
        spent = sum(spend(meetings, budget_joules)[0])
        assert spent <= budget_joules * (1 + 1e-9)
        there, used = there + min(budget_joules, usable_joules(meetings)), used + spent
    assert 0.92 * there <= used <= there * (1 + 1e-9)


@given(st.floats(1e-12, 1e12), st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_the_scale_of_a_model_changes_nothing(scale: float, number: int) -> None:
    _, plain = spend(contacts(number, 16.0, 7.0), 10.0)
    _, scaled = spend(contacts(number, 16.0, 7.0, scale), 10.0)
    assert scaled == pytest.approx(plain, rel=1e-6)


def test_a_fleet_with_more_of_everything_behaves_alike() -> None:
    """Twice the power limit, half the gain, twice the budget: the same entries."""
    meetings = contacts(1, 16.0, 7.0)
    louder = [(round_, contact_s, gain / 2, norm) for round_, contact_s, gain, norm in meetings]
    energies, _ = spend(meetings, 10.0)
    doubled, _ = spend(louder, 20.0, replace(LINK, max_power_watts=0.4))
    assert doubled == pytest.approx([2 * energy for energy in energies], rel=1e-6)


def test_decisions_do_not_know_the_future() -> None:
    meetings = contacts(2, 16.0, 7.0)
    _, whole = spend(meetings, 10.0)
    _, cut = spend(meetings[:20], 10.0)
    assert cut == whole[:20]


def test_credit_that_is_not_used_is_kept() -> None:
    """Weak contacts in the first half leave their share to the second; the queue of the paper would forget it."""
    meetings = [
        (round_, contact_s, gain, norm * (1e-9 if round_ < ROUNDS / 2 else 1.0))
        for round_, contact_s, gain, norm in contacts(3, 9.0, 7.0)
    ]
    energies, _ = spend(meetings, 10.0)
    assert sum(energies) >= 0.97 * 10.0


def test_a_contact_of_more_worth_gets_more_power() -> None:
    experience = NO_EXPERIENCE
    for wanted in (_demand(level) for level in (0.5, 1.0, 2.0)):
        experience = experience.with_contact(wanted.usable_joules, wanted.worth)
    powers = [
        fitting_power_watts(_demand(level), experience, left_joules=2.0, round_=300, rounds=ROUNDS)
        for level in (0.25, 0.5, 1.0, 2.0)
    ]
    assert powers == sorted(powers)
    assert powers[0] < powers[-1]


def test_the_last_contact_takes_what_is_left() -> None:
    wanted = _demand(1.0)
    experience = NO_EXPERIENCE.with_contact(wanted.usable_joules, wanted.worth)
    power = fitting_power_watts(wanted, experience, left_joules=0.3, round_=ROUNDS, rounds=ROUNDS)
    assert power * wanted.contact_s == pytest.approx(0.3, rel=1e-6)


def test_nothing_to_send_or_nothing_left_costs_nothing() -> None:
    wanted = _demand(1.0)
    assert fitting_power_watts(wanted, NO_EXPERIENCE, left_joules=0.0, round_=3, rounds=9) == 0.0
    assert demand(LINK, contact_s=0.0, gain_per_watt=1e5, staleness_rounds=3, update_norm_sq=1.0) is None
    assert demand(LINK, contact_s=5.0, gain_per_watt=1e5, staleness_rounds=3, update_norm_sq=0.0) is None
    energies, _ = spend([(10, 5.0, 1e5, 0.0), (20, 5.0, 1e5, 40.0)], 1.0)
    assert energies[0] == 0.0 < energies[1]


def test_price_and_worth_far_apart_do_no_harm() -> None:
    """A norm that jumps by 200 orders of magnitude, such as a run that diverges."""
    energies, _ = spend([(10, 5.0, 1e5, 1e-100), (20, 5.0, 1e5, 1e100), (30, 5.0, 1e5, 1.0)], 1.0)
    assert all(math.isfinite(energy) for energy in energies)
    assert sum(energies) <= 1.0


def test_share_used_is_the_mean_of_a_lognormal_worth() -> None:
    rng = generator(0, Stream.MONTE_CARLO, 9)
    worths = np.exp(1.0 + 0.8 * rng.standard_normal(4000))
    experience = NO_EXPERIENCE
    for worth in worths:
        experience = experience.with_contact(1.0, float(worth))
    for log_price in (-2.0, 0.0, 1.0, 3.0):
        drawn = np.minimum(worths / math.exp(log_price), 1.0).mean()
        assert experience.share_used(log_price) == pytest.approx(drawn, abs=0.01)


def test_experience_is_a_weighted_mean_and_deviation() -> None:
    rng = generator(1, Stream.MONTE_CARLO, 9)
    joules, worths = rng.exponential(1.0, 50), np.exp(rng.standard_normal(50))
    experience = NO_EXPERIENCE
    for usable, worth in zip(joules, worths, strict=True):
        experience = experience.with_contact(float(usable), float(worth))
    mean = np.average(np.log(worths), weights=joules)
    assert experience.contacts == 50
    assert experience.log_worth_mean == pytest.approx(mean)
    assert experience.log_worth_squares == pytest.approx(np.sum(joules * (np.log(worths) - mean) ** 2))
    assert experience.usable_squares == pytest.approx(np.sum(joules**2))
    assert Experience().expected_joules(5, 10) == 0.0


def _demand(level: float) -> Demand:
    return Demand(contact_s=5.0, inverse_gain_watts=1e-5, full_power_watts=0.2, level_watts=level)
