"""The controller's parts at numbers that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import wayfare
from wayfare.control import queue
from wayfare.control.auto_weight import (
    LOG_PRICES,
    NO_EXPERIENCE,
    Demand,
    Experience,
    after_contact,
    demand,
    fitting_log_price,
    fitting_power_watts,
)
from wayfare.control.budgets import draw_budgets
from wayfare.control.closed_form import full_update_power_watts, kept_entries, objective
from wayfare.control.rate_distortion import Problem, Profile, Width, choose, index_bits, power_watts, uniform_profile
from wayfare.radio import Link

LINK = Link(
    bandwidth_hz=1e3, max_power_watts=0.2, parameters=50, bits_per_entry=40.0, dense_bits=1600.0, statistics_bits=100.0
)


def test_what_a_contact_wants_is_proposition_2() -> None:
    wanted = demand(LINK, contact_s=2.0, gain_per_watt=5.0, staleness_rounds=4, update_norm_sq=7.0)
    assert isinstance(wanted, Demand)
    assert wanted.level_watts == pytest.approx(3 * 4 * 7 * 1e3 / (50 * 40 * math.log(2)))
    assert (wanted.contact_s, wanted.inverse_gain_watts) == (2.0, 0.2)
    # 2,100 bits in 2 s of 1 kHz need a power of (2^1.05 - 1) / 5, which is more than there is.
    assert wanted.full_power_watts == 0.2
    assert wanted.usable_joules == 0.4
    assert wanted.worth == pytest.approx(wanted.level_watts / 0.4)
    assert wanted.power_watts(math.log(wanted.worth)) == pytest.approx(0.2)
    assert wanted.power_watts(math.log(wanted.level_watts / 0.3)) == pytest.approx(0.1)
    assert wanted.power_watts(math.log(wanted.level_watts / 0.1)) == 0.0
    assert wanted.wanted_joules() == ()


@pytest.mark.parametrize(
    "changes",
    [{"contact_s": 0.0}, {"gain_per_watt": 0.0}, {"update_norm_sq": 0.0}, {"update_norm_sq": math.inf}],
)
def test_a_contact_that_can_bring_nothing_wants_nothing(changes: dict[str, float]) -> None:
    plain = {"contact_s": 2.0, "gain_per_watt": 5.0, "staleness_rounds": 1, "update_norm_sq": 7.0}
    assert demand(LINK, **{**plain, **changes}) is None


@pytest.mark.parametrize(("contact_s", "watts"), [(10.0, (2**0.21 - 1) / 5), (1.05, 0.2), (0.0, 0.2)])
def test_full_power_is_that_of_everything_with_its_statistics(contact_s: float, watts: float) -> None:
    found = full_update_power_watts(
        contact_s=contact_s,
        gain_per_watt=5.0,
        bandwidth_hz=1e3,
        parameters=50,
        bits_per_entry=40.0,
        max_power_watts=0.2,
        statistics_bits=100.0,
    )
    assert found == pytest.approx(watts)


def test_entries_that_fit_beside_the_statistics() -> None:
    radio = {"contact_s": 0.5, "gain_per_watt": 5.0, "bandwidth_hz": 1e3, "bits_per_entry": 40.0}
    # 500 bits at a signal of 1 to 1: 400 beside the statistics are 10 entries.
    assert kept_entries(0.2, **radio, parameters=50, statistics_bits=100.0) == 10
    assert kept_entries(0.2, **radio, parameters=50, statistics_bits=101.0) == 9
    assert kept_entries(0.2, **radio, parameters=50, statistics_bits=501.0) == 0
    assert kept_entries(0.2, **radio, parameters=50) == 12
    assert kept_entries(0.2, **{**radio, "contact_s": -1.0}, parameters=50) == 0


def test_the_objective_of_a_contact() -> None:
    found = objective(
        0.2,
        contact_s=0.5,
        gain_per_watt=5.0,
        staleness_rounds=4,
        update_norm_sq=7.0,
        backlog_joules=6.0,
        weight=3.0,
        bandwidth_hz=1e3,
        parameters=50,
        bits_per_entry=40.0,
    )
    assert found == pytest.approx(-3 * 3 * 4 * 7 * (500 / 40) / 50 + 0.5 * 0.2 * 6)


def test_a_queue_counts_what_is_above_the_pace() -> None:
    assert queue.spend(2.0, 5.0, 1.5) == 5.5
    assert queue.spend(0.0, 1.0, 1.5) == 0.0
    assert queue.idle(2.0, 3, 0.5) == 0.5
    assert queue.idle(2.0, 5, 0.5) == 0.0


def test_budgets_are_uniform_and_scaled_to_their_total() -> None:
    fleet = wayfare.load().fleet.model_copy(
        update={"devices": 400, "energy_min_joules": 2.0, "energy_max_joules": 6.0, "energy_total_joules": None}
    )
    drawn = draw_budgets(fleet, 0)
    assert len(drawn) == 400
    assert 2.0 <= drawn.min() < 2.1
    assert 5.9 < drawn.max() <= 6.0
    scaled = draw_budgets(fleet.model_copy(update={"energy_total_joules": 100.0}), 0)
    assert scaled == pytest.approx(drawn * 100 / drawn.sum())


def test_a_contact_without_worth_or_energy_counts_and_says_nothing() -> None:
    seen = NO_EXPERIENCE.with_contact(2.0, 3.0)
    for usable_joules, worth in ((0.0, 3.0), (2.0, 0.0), (-1.0, 3.0)):
        assert seen.with_contact(usable_joules, worth) == replace(seen, contacts=2)
    assert after_contact(seen, None) == replace(seen, contacts=2)


def test_experience_sums_energy_and_weighs_worth_by_it() -> None:
    seen = NO_EXPERIENCE.with_contact(2.0, math.e).with_contact(6.0, math.e**5)
    assert (seen.contacts, seen.usable_joules, seen.usable_squares) == (2, 8.0, 40.0)
    assert seen.log_worth_mean == pytest.approx((2 * 1 + 6 * 5) / 8)
    assert seen.log_worth_squares == pytest.approx(2 * (1 - 4) ** 2 + 6 * (5 - 4) ** 2)
    assert (
        Experience(
            contacts=0,
            usable_joules=0.0,
            usable_squares=0.0,
            log_worth_mean=0.0,
            log_worth_squares=0.0,
            wanted_joules=(),
        )
        == NO_EXPERIENCE
    )


def test_wanted_energy_adds_up_where_contacts_have_told_it() -> None:
    told = NO_EXPERIENCE.with_contact(2.0, 3.0, (1.0, 2.0)).with_contact(2.0, 3.0, [10.0, 20.0])
    assert told.wanted_joules == (11.0, 22.0)
    assert told.with_contact(0.0, 0.0).wanted_joules == (11.0, 22.0)
    assert Experience.of({"contacts": 1, "wanted_joules": [3.0]}) == Experience(contacts=1, wanted_joules=(3.0,))


def test_what_contacts_have_told_is_read_between_prices_and_ends_at_the_last() -> None:
    falling = tuple(np.linspace(8.0, 0.0, len(LOG_PRICES)).tolist())
    seen = Experience(contacts=1, usable_joules=16.0, usable_squares=1.0, wanted_joules=falling)
    assert (LOG_PRICES[0], LOG_PRICES[-1], len(LOG_PRICES)) == (-60.0, 60.0, 241)
    for log_price in (-60.0, -59.9, 0.0, 0.3, 17.25, 59.4):
        assert seen.share_used(log_price) == pytest.approx(np.interp(log_price, LOG_PRICES, falling) / 16)
    assert seen.share_used(-1e3) == 0.5
    assert seen.share_used(1e3) == pytest.approx(0.0, abs=1e-4)


def test_contacts_of_one_worth_are_used_up_to_it() -> None:
    seen = NO_EXPERIENCE.with_contact(2.0, math.e)
    assert [seen.share_used(log_price) for log_price in (0.0, 1.0, 3.0)] == pytest.approx([1.0, 1.0, math.exp(-2)])
    assert NO_EXPERIENCE.share_used(1.0) == pytest.approx(math.exp(-1))


def test_what_is_expected_is_the_past_drawn_out_with_caution() -> None:
    seen = Experience(contacts=2, usable_joules=8.0, usable_squares=40.0)
    # A quarter of the rounds is gone: three times as much is to come, and a variance of 1/d + 1/n about it.
    alike_contacts = 64 / 40
    variance = 1 / (3 * alike_contacts) + 1 / alike_contacts
    assert seen.expected_joules(25, 100) == pytest.approx(24 / (1 + 9 * variance))
    assert seen.expected_joules(100, 100) == 0.0
    assert seen.expected_joules(99, 100) > 0.0
    assert NO_EXPERIENCE.expected_joules(1, 100) == 0.0


def test_the_fitting_price_uses_up_what_is_left() -> None:
    wanted = demand(LINK, contact_s=2.0, gain_per_watt=5.0, staleness_rounds=4, update_norm_sq=7.0)
    assert isinstance(wanted, Demand)
    seen = NO_EXPERIENCE.with_contact(3.0, 2 * wanted.worth).with_contact(wanted.usable_joules, wanted.worth)
    terms = {"round_": 10, "rounds": 40}
    expected_joules = seen.expected_joules(10, 40)
    for left_joules in (0.05, 0.2, 0.5):
        log_price = fitting_log_price(wanted, seen, left_joules=left_joules, **terms)
        used = 2.0 * wanted.power_watts(log_price) + expected_joules * seen.share_used(log_price)
        assert used == pytest.approx(left_joules, rel=1e-9)
        power = fitting_power_watts(wanted, seen, left_joules=left_joules, **terms)
        assert power == wanted.power_watts(log_price)
    ample = 0.4 + expected_joules
    assert fitting_log_price(wanted, seen, left_joules=ample, **terms) == -math.inf
    assert fitting_log_price(wanted, seen, left_joules=ample * (1 - 1e-9), **terms) > -math.inf
    assert fitting_power_watts(wanted, seen, left_joules=0.0, **terms) == 0.0
    assert fitting_power_watts(wanted, seen, left_joules=ample, **terms) == wanted.full_power_watts


def two_widths() -> Profile:
    """Ten entries, of which one, four or all are kept, in 32 bits or in 4, which lose a tenth."""
    return Profile(
        kept=np.array([0.0, 1.0, 4.0, 10.0]),
        captured=np.array([0.0, 0.5, 0.8, 1.0]),
        widths=[
            Width(value_bits=32, bits=np.full(3, 32.0), lost=np.zeros(3)),
            Width(value_bits=4, bits=np.full(3, 4.0), lost=np.full(3, 0.1)),
        ],
        overhead_bits=7.0,
    )


def test_a_message_takes_its_overhead_its_places_and_its_values() -> None:
    entropy = 10 * np.array([-(k * math.log2(k) + (1 - k) * math.log2(1 - k)) for k in (0.1, 0.4)])
    places = 7.0 + np.array([*entropy, 0.0])
    values = np.array([1.0, 4.0, 10.0])
    assert index_bits(np.array([0.0, 1.0, 4.0, 10.0]), 10) == pytest.approx([0.0, *entropy, 0.0])
    profile = two_widths()
    assert profile.message_bits == pytest.approx(
        np.array([[0.0, *(places + 32 * values)], [0.0, *(places + 4 * values)]])
    )
    assert profile.arriving == pytest.approx(np.array([[0.0, 0.5, 0.8, 1.0], [0.0, 0.45, 0.72, 0.9]]))
    assert [width.value_bits for width in profile.only(4).widths] == [4]


def test_the_hull_is_the_least_concave_curve_above_all_points() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        points = 12
        profile = Profile(
            kept=np.append(0.0, np.sort(rng.choice(np.arange(1, 500), points, replace=False))).astype(float),
            captured=np.append(0.0, np.sort(rng.random(points))),
            widths=[
                Width(value_bits=bits, bits=rng.uniform(1, 32, points), lost=rng.uniform(0, 0.3, points))
                for bits in (32, 4)
            ],
            overhead_bits=float(rng.uniform(0, 500)),
        )
        curve = profile.curve
        x, y = profile.message_bits.ravel(), profile.arriving.ravel()
        # Above every chord between two points, and below the largest of them.
        at = rng.uniform(0, curve.bits[-1], 50)
        chords = [
            np.where((low <= at) & (at <= high), left + (right - left) * (at - low) / (high - low), -np.inf)
            for low, left in zip(x, y, strict=True)
            for high, right in zip(x, y, strict=True)
            if low < high
        ]
        below = [np.where(x0 <= at, y0, -np.inf) for x0, y0 in zip(x, y, strict=True)]
        best = np.maximum(np.max(chords, axis=0), np.max(below, axis=0))
        assert np.interp(at, curve.bits, curve.captured) == pytest.approx(best)
        assert curve.slopes == pytest.approx(np.diff(curve.captured) / np.diff(curve.bits))
        assert curve.captured[-1] == y.max()
        assert np.all(np.diff(curve.slopes) < 0)


def test_a_choice_is_the_most_that_so_many_bits_capture() -> None:
    profile = two_widths()
    assert choose(profile, 10.0).entries == 0
    assert (choose(profile, 10.0).value_bits, choose(profile, 10.0).bits) == (32, 0.0)
    everything = choose(profile, 1e6)
    assert (everything.entries, everything.value_bits, everything.bits) == (10, 32, pytest.approx(327.0))
    exactly = float(profile.message_bits[1, 2])
    four = choose(profile, exactly)
    assert (four.entries, four.value_bits, four.bits) == (4, 4, pytest.approx(exactly))
    # Between four entries and ten lie seven, where the bits are half-way.
    between = choose(profile, (exactly + profile.message_bits[1, 3]) / 2)
    assert (between.entries, between.value_bits) == (7, 4)


def test_entries_that_are_alike_hold_their_share_in_32_bits() -> None:
    profile = uniform_profile(100, 5.0)
    assert (profile.kept[0], profile.kept[1], profile.kept[-1], profile.overhead_bits) == (0.0, 1.0, 100.0, 5.0)
    assert len(profile.kept) == 1 + len(np.unique(np.geomspace(1, 100, 64).astype(int)))
    assert profile.captured == pytest.approx(profile.kept / 100)
    (width,) = profile.widths
    assert (width.value_bits, set(width.bits.tolist()), set(width.lost.tolist())) == (32, {32.0}, {0.0})
    assert (uniform_profile(100).overhead_bits, replace(profile, overhead_bits=0.0).overhead_bits) == (0.0, 0.0)
    assert Profile(kept=profile.kept, captured=profile.captured, widths=[width]).overhead_bits == 0.0


def test_power_and_bits_of_a_contact() -> None:
    assert power_watts(2100.0, contact_s=2.0, gain_per_watt=5.0, bandwidth_hz=1e3) == pytest.approx((2**1.05 - 1) / 5)
    assert power_watts(0.0, contact_s=2.0, gain_per_watt=5.0, bandwidth_hz=1e3) == 0.0
    problem = Problem(
        curve=two_widths().curve, value=6.0, contact_s=0.1, gain_per_watt=5.0, bandwidth_hz=1e3, max_power_watts=0.2
    )
    assert problem.max_bits == pytest.approx(100.0)
    assert problem.full_power_watts == pytest.approx(0.2)
    assert problem.usable_joules == pytest.approx(0.02)
    assert replace(problem, contact_s=10.0).max_bits == pytest.approx(327.0)
    assert problem.worthwhile_bits(0.0, 0.0) == 0.0
    # Bits are worth their energy as long as value times slope is more than price times joules.
    for log_price in (-2.0, 0.0, 2.0, 5.0):
        joules_per_bit = 0.2 / 1000
        worth_it = problem.value * problem.curve.slopes >= math.exp(log_price) * joules_per_bit
        assert problem.worthwhile_bits(0.2, log_price) == problem.curve.bits[worth_it.sum()]


def test_the_hull_ends_at_the_first_of_its_highest_points() -> None:
    # Twice as many entries hold no more, so they lie on no corner.
    width = Width(value_bits=32, bits=np.array([10.0, 10.0]), lost=np.zeros(2))
    profile = Profile(
        kept=np.array([0.0, 4.0, 8.0]), captured=np.array([0.0, 1.0, 1.0]), widths=[width], overhead_bits=0.0
    )
    assert profile.curve.captured.tolist() == [0.0, 1.0]
    assert profile.curve.bits[-1] == profile.message_bits[0, 1] < profile.message_bits[0, 2]


def test_little_energy_and_short_contacts_count_too() -> None:
    seen = NO_EXPERIENCE.with_contact(0.1, math.e).with_contact(0.3, math.e**5)
    spread = math.sqrt((0.1 * 9 + 0.3 * 1) / 0.4)
    above = 4.0 - 2.0
    cdf = NormalDist().cdf
    expected = cdf(above / spread) + math.exp(above + spread**2 / 2) * cdf(-above / spread - spread)
    assert seen.share_used(2.0) == pytest.approx(expected)
    little = Experience(contacts=1, usable_joules=0.5, wanted_joules=(0.25,) * len(LOG_PRICES))
    assert little.share_used(0.0) == 0.5
    nothing = Experience(contacts=1, wanted_joules=(0.0,) * len(LOG_PRICES))
    assert nothing.share_used(0.0) == 0.0
    short = demand(LINK, contact_s=0.5, gain_per_watt=0.5, staleness_rounds=1, update_norm_sq=7.0)
    assert isinstance(short, Demand)
    assert (short.contact_s, short.inverse_gain_watts) == (0.5, 2.0)


def test_bits_for_the_fewest_entries_are_used() -> None:
    profile = two_widths()
    fewest = float(profile.message_bits[:, 1].min())
    chosen = choose(profile, fewest)
    assert (chosen.entries, chosen.bits) == (1, fewest)
    assert choose(profile, fewest - 1.0).entries == 0
