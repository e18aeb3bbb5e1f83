"""Every bound, term by term, at numbers that distinguish its terms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wayfare.theory import bounds
from wayfare.theory.norms import NormModel, captured_share, typical_loss, typical_norms, typical_profile
from wayfare.theory.staleness import Counting, age_tail, staleness_moments


def test_lemma_1() -> None:
    given = {"staleness_rounds_sq": 7.0, "learning_rate": 0.1, "gradient_sq": 3.0}
    printed = bounds.lemma_1_divergence(**given, kept_fraction=0.25, update_sq=11.0, variant="printed")
    assert printed == pytest.approx(2 * 7 * 0.01 * 3 + (5 - 0.75) * 11)
    corrected = bounds.lemma_1_divergence(**given, undelivered_sq=13.0)
    assert corrected == pytest.approx(6 * 7 * 0.01 * 3 + 3 * 13)
    assert bounds.lemma_1_divergence(**given) == pytest.approx(6 * 7 * 0.01 * 3)
    assert bounds.lemma_1_divergence(**given, variant="printed") == pytest.approx(2 * 7 * 0.01 * 3)


def test_theorem_1() -> None:
    given = {"initial_gap": 2.0, "learning_rate": 0.1, "rounds": 50.0, "smoothness": 3.0, "noise_sq": 25.0}
    given |= {"devices": 8.0, "divergence": 0.7}
    start, drift = 4 * 2 / (0.1 * 50), 4 * 9 * 0.7
    assert bounds.theorem_1_gradient(**given) == pytest.approx(start + drift + 2 * 0.1 * 3 * 25 / 8)
    printed = bounds.theorem_1_gradient(**given, variant="printed")
    assert printed == pytest.approx(start + drift + 4 * 0.1 * 3 * 5 / 8)


def test_lemma_2() -> None:
    a, pi = math.exp(-10 / 30), 30 / 35
    printed = bounds.lemma_2_staleness(5.0, 30.0, 10.0, variant="printed")
    assert printed == pytest.approx(1 + pi * (a**4 - 3 * a**3 + 4 * a**2) / (1 - a) ** 2)
    assert bounds.lemma_2_staleness(5.0, 30.0, 10.0) == pytest.approx(1 + pi * a * (3 - a) / (1 - a) ** 2)


@pytest.mark.parametrize("counting", ["overlap", "start"])
@pytest.mark.parametrize(("contact_s", "inter_contact_s"), [(5.0, 30.0), (30.0, 7.0), (2.0, 200.0)])
def test_moments_of_staleness_are_sums_over_its_tail(
    contact_s: float, inter_contact_s: float, counting: Counting
) -> None:
    rounds = np.arange(1, 3000)
    tail = age_tail(rounds, contact_s, inter_contact_s, 10.0, counting)
    found = staleness_moments(contact_s, inter_contact_s, 10.0, counting)
    assert age_tail(0, contact_s, inter_contact_s, 10.0, counting) == pytest.approx(1.0)
    assert found.contact_round_share == pytest.approx(1 - tail[0], rel=1e-9)
    assert found.age_mean == pytest.approx(tail.sum(), rel=1e-9)
    assert found.age_square == pytest.approx(((2 * rounds - 1) * tail).sum(), rel=1e-9)
    assert found.at_contact_mean == pytest.approx(1 / (1 - tail[0]), rel=1e-9)
    assert found.at_contact_square == pytest.approx((1 + 2 * tail.sum()) / (1 - tail[0]), rel=1e-9)
    assert found.before_exchange_square == pytest.approx(1 + 2 * tail.sum() + ((2 * rounds - 1) * tail).sum())


def test_a_tail_is_a_mean_over_two_exponentials() -> None:
    assert age_tail(3, 5.0, 30.0, 10.0, "overlap") == pytest.approx(30 / 35 * math.exp(-1))
    mixed = (900 * math.exp(-1) - 25 * math.exp(-6)) / (900 - 25)
    assert age_tail(3, 5.0, 30.0, 10.0, "start") == pytest.approx(mixed)


@pytest.mark.parametrize("ratio", [1 - 1e-3, 1 - 2e-4, 1.0, 1 + 1e-5, 1 + 1e-3])
def test_equal_means_are_the_limit_of_unequal_ones(ratio: float) -> None:
    # d/dm (m^2 exp(-x/m)) / (2 m) = exp(-x/m) (1 + x / (2 m))
    limit = math.exp(-0.5) * (1 + 0.25)
    assert age_tail(1, 20.0 * ratio, 20.0, 10.0, "start") == pytest.approx(limit, rel=2e-3 * abs(ratio - 1) + 2e-4)


def test_lemma_3_and_the_kept_share() -> None:
    rho = math.exp(-40 / (1000 * 0.5))
    s = 30
    gamma = rho * (1 - rho**s) / (s * (1 - rho))
    assert bounds.kept_share(1000.0, 0.5, s, 40.0) == pytest.approx(gamma)
    assert bounds.kept_share(1000.0, 0.5, s, 40.0, "printed") == pytest.approx(rho)
    assert bounds.lemma_3_sparsification_error(1000.0, 0.5, s, 40.0) == pytest.approx(1 - gamma)
    # Without a limit to the rate everything is kept.
    assert bounds.kept_share([1000.0, math.inf], 0.5, s, 40.0) == pytest.approx([gamma, 1.0])
    # Almost everything, and almost nothing.
    assert bounds.kept_share([1e12, 1.0], 0.5, s, 40.0) == pytest.approx([1.0, math.exp(-80) / s], rel=1e-8)


def test_lemma_4() -> None:
    gamma, scale = 0.36, 7 * 0.01 * 3
    assert bounds.lemma_4_memory(gamma, 7.0, 0.1, 3.0) == pytest.approx(4 * (1 - gamma**2) / gamma**2 * scale)
    q = 0.8
    assert bounds.lemma_4_memory(gamma, 7.0, 0.1, 3.0, sharp=True) == pytest.approx((q / (1 - q)) ** 2 * scale)


COEFFICIENTS = {
    "printed": (16 - 8 * 0.36 - 11 * 0.36**2 + 6 * 0.36**3) / 0.36**2,
    "corrected": (24 - 12 * 0.36**2) / 0.36**2,
    "sharp": 6 + 3 / (1 - 0.8) ** 2,
}


@pytest.mark.parametrize("variant", COEFFICIENTS)
def test_what_theorem_2_multiplies_staleness_with(variant: bounds.BoundVariant) -> None:
    assert bounds.mobility_coefficient(0.36, variant) == pytest.approx(COEFFICIENTS[variant])
    radio = {"rate_bps": 1000.0, "parameters": 30, "bits_per_entry": 40.0}
    factor = bounds.mobility_factor(**radio, contact_s=5.0, inter_contact_s=30.0, round_s=10.0, variant=variant)
    gamma = bounds.kept_share(1000.0, 5.0, 30, 40.0, variant)
    theta = bounds.lemma_2_staleness(5.0, 30.0, 10.0, variant=variant)
    assert factor == pytest.approx(bounds.mobility_coefficient(gamma, variant) * theta)


def test_theorem_2() -> None:
    given = {"initial_gap": 2.0, "smoothness": 3.0, "gradient_sq": 5.0, "noise_sq": 49.0, "devices": 8.0}
    given |= {"rounds": 400.0, "factor": 11.0}
    rest = 8 * 3 * 2 / 20 + 5 * 11 / 400
    assert bounds.theorem_2_gradient(**given) == pytest.approx(rest + 49 / (8 * 20))
    assert bounds.theorem_2_gradient(**given, variant="printed") == pytest.approx(rest + 2 * 7 / (8 * 20))


@pytest.mark.parametrize(("variant", "leading"), [("printed", 16.0), ("corrected", 24.0)])
def test_corollary_1(variant: bounds.BoundVariant, leading: float) -> None:
    radio = {"rate_bps": 1000.0, "parameters": 30, "bits_per_entry": 40.0, "round_s": 10.0}
    found = bounds.corollary_1_factor(4.0, contact_m=20.0, inter_contact_m=120.0, **radio, variant=variant)
    gamma = bounds.kept_share(1000.0, 5.0, 30, 40.0, variant)
    theta = bounds.lemma_2_staleness(5.0, 30.0, 10.0, variant=variant)
    assert found == pytest.approx(leading * theta / gamma**2)
    sharp = bounds.corollary_1_factor(4.0, contact_m=20.0, inter_contact_m=120.0, **radio, variant="sharp")
    times = {"contact_s": 5.0, "inter_contact_s": 30.0}
    assert sharp == pytest.approx(bounds.mobility_factor(**radio, **times, variant="sharp"))


def test_theorem_3() -> None:
    assert bounds.theorem_3_objective_gap(10.0, 3.0, 7.0) == pytest.approx(100 * 3 / 7 / 2)
    assert bounds.theorem_3_objective_gap(10.0, 3.0, 7.0, "printed") == pytest.approx(100 * 3 / 7)
    given = {"budget_joules": 5.0, "rounds": 10.0, "energy_swing_sq": 3.0, "weight": 7.0, "offline_objective": 2.0}
    assert bounds.theorem_3_energy_joules(**given) == pytest.approx(5 + math.sqrt(300 + 28))
    assert bounds.theorem_3_energy_joules(**given, variant="printed") == pytest.approx(5 + math.sqrt(600 - 28))


def test_proposition_1() -> None:
    radio = {"contact_s": 2.5, "gain_per_watt": 15.0, "bandwidth_hz": 100.0, "bits_per_entry": 35.0}
    printed = bounds.proposition_1_entries(0.2, **radio, parameters=9, variant="printed")
    assert printed == pytest.approx(2.5 * 200 / 35)
    assert bounds.proposition_1_entries(0.2, **radio, parameters=30) == 14
    assert bounds.proposition_1_entries(0.2, **radio, parameters=9) == 9


def test_norms_grow_with_staleness_and_keep_what_was_left() -> None:
    model = NormModel(step_norm_sq=2.0, growth=0.5, log_spread=0.25)
    assert model.next_norm_sq(3.0, 16.0, 1.5) == pytest.approx(3 + 2 * 4 * 1.5)
    factors = model.factors(0, 3, 20_000)
    assert np.log(factors).std() == pytest.approx(0.25, rel=0.03)
    assert np.array_equal(factors[:5], model.factors(0, 3, 5))
    assert (NormModel(step_norm_sq=1.0).growth, NormModel(step_norm_sq=1.0).log_spread) == (0.5, 0.5)


def test_what_the_largest_of_exponential_magnitudes_capture() -> None:
    magnitudes = np.sort(np.random.default_rng(0).exponential(size=200_000))[::-1]
    energy = np.cumsum(magnitudes**2) / np.sum(magnitudes**2)
    for share in (0.001, 0.05, 0.4, 0.9):
        assert captured_share(share) == pytest.approx(energy[int(share * 200_000) - 1], rel=0.02)
    assert captured_share(0.1) == pytest.approx(0.1 * (1 + math.log(10) + math.log(10) ** 2 / 2))
    assert captured_share([0.0, 1.0, 2.0]) == pytest.approx([0.0, 1.0, 1.0], abs=1e-290)


def test_a_typical_update_has_the_widths_that_were_measured() -> None:
    profile = typical_profile(1000, 64.0)
    assert (profile.kept[0], profile.kept[1], profile.kept[-1], profile.overhead_bits) == (0.0, 1.0, 1000.0, 64.0)
    assert profile.captured == pytest.approx(np.append(0.0, captured_share(profile.kept[1:] / 1000)))
    measured = {width.value_bits: (width.bits, width.lost) for width in profile.widths}
    expected = {32: (32.0, 0.0), 8: (7.2, 3e-5), 4: (3.2, 6.5e-3), 2: (1.4, 0.106), 1: (1.1, 0.158)}
    assert measured.keys() == expected.keys()
    for value_bits, (bits, lost) in measured.items():
        assert len(bits) == len(lost) == len(profile.kept) - 1
        assert (bits[0], lost[0]) == (bits[-1], lost[-1]) == expected[value_bits]
        assert typical_loss(value_bits) == expected[value_bits][1]
    assert len(typical_profile(10**12, 0.0).kept) == 1 + len({int(10 ** (12 * place / 63)) for place in range(64)})
    assert typical_loss(None) == 0.0
    assert typical_loss(7) == 0.0


def test_what_was_seen_of_a_network_is_told_from_a_guess() -> None:
    found = {name: typical_norms(name) for name in ("mlp", "resnet9", "own")}
    assert {name: (model.step_norm_sq, model.known) for name, model in found.items()} == {
        "mlp": (8.5, True),
        "resnet9": (290.0, True),
        "own": (100.0, False),
    }
