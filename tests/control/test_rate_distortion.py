"""The worth of bits: hulls against all points, the closed form against an optimiser, choices against all choices."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from wayfare.codec.indices import encode_indices
from wayfare.control.auto_weight import LOG_PRICES, NO_EXPERIENCE, fitting_log_price
from wayfare.control.rate_distortion import Problem, Profile, Width, choose, index_bits, uniform_profile
from wayfare.sparsify import top_k
from wayfare.sparsify.spectrum import spectrum


def vector(entries: int = 30_000, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(4, entries).astype(np.float32))


def width(value_bits: int, bits: float, lost: float, points: int) -> Width:
    return Width(value_bits=value_bits, bits=np.full(points, bits), lost=np.full(points, lost))


def offered() -> Profile:
    seen = spectrum(vector())
    points = len(seen.kept) - 1
    table = ((32, 32.0, 0.0), (8, 7.2, 3e-5), (4, 3.2, 6.5e-3), (1, 1.06, 0.16))
    widths = [width(*row, points) for row in table]
    return Profile(kept=seen.kept, captured=seen.captured, widths=widths, overhead_bits=300.0)


OFFERED = offered()
HULL = OFFERED.curve


def problems(count: int) -> list[Problem]:
    rng = np.random.default_rng(5)
    return [
        Problem(
            curve=HULL,
            value=10 ** rng.uniform(-4, 5),
            contact_s=rng.uniform(0.1, 10),
            gain_per_watt=10 ** rng.uniform(1, 6),
            bandwidth_hz=10 ** rng.uniform(3, 6),
            max_power_watts=0.2,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("entries", [1, 10, 5_000, 100_000, 1_000_000])
def test_a_spectrum_says_what_the_largest_entries_hold(entries: int) -> None:
    x = vector(entries)
    seen = spectrum(x)
    assert seen.entries == entries
    assert seen.kept[0] == seen.captured[0] == 0
    assert seen.captured[-1] == pytest.approx(1)
    assert bool(np.all(np.diff(seen.captured) > 0))
    for share in (0.01, 0.1, 0.3):
        k = max(int(share * entries), 1)
        truth = float(top_k(x, k).values.double().square().sum() / x.double().square().sum())
        assert np.interp(k, seen.kept, seen.captured) == pytest.approx(truth, rel=0.05, abs=0.02)


def test_segments_know_their_own_magnitudes() -> None:
    x = vector(800_000)
    x[:100_000] *= 100
    seen = spectrum(x)
    bound = float(seen.whole.at(np.array([50_000.0]))[0])
    counts = seen.segments.above(np.array([bound]))[:, 0].tolist()
    place = int(seen.whole.indices(np.array([50_000.0]))[0])
    assert sum(counts) == pytest.approx(float(seen.whole.ranks[place]))
    assert counts == seen.whole.in_segments[:, place].tolist()
    assert counts[0] == pytest.approx(50_000, rel=0.2)
    assert sum(counts[1:]) < 100
    median = float(seen.segments.at(np.full((8, 1), 50_000.0))[0, 0])
    assert median == pytest.approx(float(x[:100_000].abs().median()), rel=0.05)


def test_a_vector_of_zeros_captures_nothing() -> None:
    assert float(spectrum(torch.zeros(100)).captured.max()) == 0


def test_index_bits_are_what_the_encoder_takes() -> None:
    x, entries = vector(200_000), 200_000
    for k in (2_000, 20_000, 60_000):
        _, data = encode_indices(top_k(x, k).indices.numpy(), entries)
        assert 8 * len(data) == pytest.approx(float(index_bits(np.array([k]), entries)[0]), rel=0.03, abs=2_100)


def test_no_point_lies_above_the_hull_and_its_slopes_fall() -> None:
    assert bool(np.all(np.diff(HULL.slopes) < 0))
    assert HULL.bits[0] == HULL.captured[0] == 0
    for bits, shares in zip(OFFERED.message_bits, OFFERED.arriving, strict=True):
        # Beyond its last corner the hull stays where it is.
        assert bool(np.all(shares <= np.interp(bits, HULL.bits, HULL.captured) + 1e-12))


def test_the_hull_of_entries_that_are_alike_is_a_line() -> None:
    line = uniform_profile(1000, 50.0).curve
    assert line.bits.tolist() == [0.0, 32_050.0]
    assert line.captured.tolist() == [0.0, 1.0]


def test_the_closed_form_is_the_minimum() -> None:
    rng = np.random.default_rng(6)
    for problem in problems(300):
        price = 10 ** rng.uniform(-4, 8)

        def cost(bits: float, problem: Problem = problem, price: float = price) -> float:
            captured = float(np.interp(bits, HULL.bits, HULL.captured))
            return -problem.value * captured + price * problem.contact_s * problem.power_for(bits)

        found = float(problem.best_bits(np.array([math.log(price)]))[0])
        most = problem.max_bits
        assert 0 <= found <= most * (1 + 1e-12)
        grid = [cost(bits) for bits in np.linspace(0, most, 1000)]
        fine = minimize_scalar(cost, bounds=(0, most), method="bounded", options={"xatol": 1e-6 * most}).fun
        assert cost(found) <= min(*grid, fine) + 1e-9 * problem.value


def test_best_bits_at_many_prices_are_the_best_of_every_segment() -> None:
    log_prices = np.linspace(-20, 25, 90)
    for problem in problems(40):
        best, least = np.zeros(len(log_prices)), np.zeros(len(log_prices))
        hertz_s = problem.contact_s * problem.bandwidth_hz
        level = problem.value * problem.bandwidth_hz * problem.gain_per_watt / math.log(2)
        for slope, (begin, end) in zip(HULL.slopes, pairwise(HULL.bits), strict=True):
            inside = hertz_s / math.log(2) * (math.log(level * slope) - log_prices)
            bits = np.clip(inside, begin, end).clip(max=problem.max_bits)
            joules = np.array([problem.contact_s * problem.power_for(float(each)) for each in bits])
            cost = np.exp(log_prices) * joules - problem.value * np.interp(bits, HULL.bits, HULL.captured)
            best, least = np.where(cost < least, bits, best), np.minimum(cost, least)
        assert problem.best_bits(log_prices) == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_worth_is_the_price_up_to_which_full_power_is_right() -> None:
    for problem in problems(100):
        below, above = (problem.power_watts(math.log(problem.worth) + step) for step in (-1e-6, 1e-3))
        assert below == pytest.approx(problem.full_power_watts, rel=1e-6)
        assert above <= problem.full_power_watts


def test_one_price_gives_the_power_that_many_prices_give() -> None:
    log_prices = np.append(np.linspace(-20, 25, 200), [-math.inf, math.inf])
    for problem in problems(20):
        bits = problem.best_bits(log_prices)
        for log_price, best in zip(log_prices.tolist(), bits.tolist(), strict=True):
            assert problem.bits_at(log_price) == best
            assert problem.power_watts(log_price) == problem.power_for(best)


def test_a_joule_that_costs_nothing_buys_everything_and_one_without_bounds_nothing() -> None:
    for problem in problems(20):
        free, dear = problem.best_bits(np.array([-math.inf, math.inf]))
        assert (free, dear) == (problem.max_bits, 0.0)


def test_wanted_energy_falls_with_the_price_and_is_that_of_the_best_power() -> None:
    for problem in problems(20):
        wanted = problem.wanted_joules()
        assert all(one >= other for one, other in pairwise(wanted))
        for place in (0, 100, 130, 240):
            power_watts = problem.power_watts(float(LOG_PRICES[place]))
            assert wanted[place] == pytest.approx(problem.contact_s * power_watts, rel=1e-9, abs=1e-300)


def test_going_on_pays_until_a_bit_is_worth_less_than_its_energy() -> None:
    rng = np.random.default_rng(7)
    for problem in problems(100):
        price = problem.worth * 10 ** rng.uniform(0, 2)
        power_watts = problem.power_watts(math.log(price))
        if power_watts <= 0:
            continue
        rate_bps = problem.bandwidth_hz * math.log2(1 + power_watts * problem.gain_per_watt)
        # The best end among all, at this power, of a contact without end.
        gains = problem.value * HULL.captured - price * power_watts * HULL.bits / rate_bps
        found = problem.worthwhile_bits(power_watts, math.log(price))
        assert found == HULL.bits[int(np.argmax(gains))]
        # That is no less than what was planned for the contact, where it is planned to the segment.
        planned = float(problem.best_bits(np.array([math.log(price)]))[0])
        assert found >= planned * (1 - 1e-9)


def test_the_choice_captures_most_of_all_choices() -> None:
    for bits in np.geomspace(500, 2e6, 60):
        found = choose(OFFERED, float(bits))
        best = 0.0
        for costs, shares in zip(OFFERED.message_bits, OFFERED.arriving, strict=True):
            fine = np.linspace(0, OFFERED.kept[-1], 60_001)
            payable = np.interp(fine, OFFERED.kept, costs) <= bits
            best = max(best, float(np.interp(fine, OFFERED.kept, shares)[payable].max()))
        row = [width.value_bits for width in OFFERED.widths].index(found.value_bits)
        assert float(np.interp(found.entries, OFFERED.kept, OFFERED.arriving[row])) >= best - 1e-3
        assert found.bits <= bits


def test_four_bits_of_value_are_best_until_nearly_everything_is_sent() -> None:
    entries = OFFERED.kept[-1]
    for bits in (5_000.0, 20_000.0, 60_000.0):
        found = choose(OFFERED, bits)
        assert found.entries < 0.6 * entries
        assert found.value_bits == 4
    assert choose(OFFERED, 1e9).value_bits == 32
    assert choose(OFFERED, 1e9).entries == entries
    assert choose(OFFERED, 10.0).entries == 0


def test_one_price_uses_up_what_is_left() -> None:
    """The contacts so far say what they would have taken; as many again are expected, and all pay one price."""
    met = problems(400)
    experience = NO_EXPERIENCE
    for problem in met:
        experience = experience.with_contact(problem.usable_joules, problem.worth, problem.wanted_joules())
    usable = sum(problem.usable_joules for problem in met)
    for share in (0.1, 0.3, 0.7):
        log_price = fitting_log_price(met[-1], experience, left_joules=share * usable, round_=500, rounds=1000)
        taken = sum(problem.contact_s * problem.power_watts(log_price) for problem in met)
        # A little less than is there is expected of the future, so a little more is taken.
        assert share * usable <= taken * 1.02 <= 1.15 * share * usable


def test_experience_without_such_figures_is_as_it_was() -> None:
    plain = NO_EXPERIENCE.with_contact(1.0, 2.0)
    assert plain.wanted_joules == ()
    more = plain.with_contact(1.0, 2.0, problems(1)[0].wanted_joules())
    assert replace(more, wanted_joules=()) == plain.with_contact(1.0, 2.0)
