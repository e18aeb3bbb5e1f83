"""The bounds of the paper against Monte Carlo and algebra; every finding of docs/errata.md has its test here."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from tests.theory.problems import loss, quadratic_problem

from wayfare.streams import FLEET, Stream, generator
from wayfare.theory import bounds
from wayfare.theory.bounds import BoundVariant
from wayfare.theory.montecarlo import (
    DrawnContacts,
    Problem,
    Trial,
    algorithm_1,
    constant_gradients,
    draw_contacts,
)

S, B = 6_568_650, 54.647
ENTRIES, DEVICES, ROUND_S = 48, 8, 10.0
# Contact and inter-contact times in seconds, and bits per second: from hardly anything to everything gets through.
GRID = [
    (contact_s, inter_contact_s, rate_bps)
    for contact_s, inter_contact_s in ((1.0, 50.0), (4.0, 100.0), (16.0, 400.0), (30.0, 20.0), (5.0, 8.0))
    for rate_bps in (2e6, 15e6, 200e6)
]


def rng(number: int = 0) -> np.random.Generator:
    return generator(11 + number, Stream.MONTE_CARLO, FLEET)


def trial(problem: Problem, point: tuple[float, float, float], rounds: int, learning_rate: float) -> Trial:
    contact_s, inter_contact_s, rate_bps = point
    contacts = draw_contacts(
        rng(1),
        contact_s=contact_s,
        inter_contact_s=inter_contact_s,
        round_s=ROUND_S,
        rounds=rounds,
        devices=DEVICES,
    )
    rate = rate_bps / (S * B / ENTRIES)
    return algorithm_1(problem, contacts, entries_per_s=rate, learning_rate=learning_rate, rng=rng(2))


def factor(point: tuple[float, float, float], variant: BoundVariant) -> float:
    """For the small model that stands for the large one, counted as the simulator counts."""
    contact_s, inter_contact_s, rate_bps = point
    found = bounds.mobility_factor(
        rate_bps=rate_bps,
        contact_s=contact_s,
        inter_contact_s=inter_contact_s,
        round_s=ROUND_S,
        parameters=ENTRIES,
        bits_per_entry=S * B / ENTRIES,
        counting="start",
        variant=variant,
    )
    return float(found)


class TestLemma3:
    @pytest.mark.parametrize("rate_bps", [1e6, 1e7, 1e8])
    @pytest.mark.parametrize("contact_s", [0.1, 1.0, 4.0, 16.0, 100.0])
    def test_exact_kept_share_equals_drawn_contacts(self, rate_bps: float, contact_s: float) -> None:
        tau = rng().exponential(contact_s, 400_000)
        kept = np.minimum(np.floor(tau * rate_bps / B), S) / S
        exact = bounds.kept_share(rate_bps, contact_s, S, B)
        assert exact == pytest.approx(kept.mean(), rel=0.01)

    def test_exact_kept_share_equals_the_sum_it_stands_for(self) -> None:
        for parameters in (1, 2, 7, 300):
            for y in (1e-6, 0.01, 0.5, 3.0, 50.0):
                brute = sum(np.exp(-y * k) for k in range(1, parameters + 1)) / parameters
                assert bounds.kept_share(1.0, 1.0, parameters, y) == pytest.approx(brute, rel=1e-10)
        assert bounds.kept_share(1.0, 1.0, 100, 1e4) == 0.0

    @pytest.mark.parametrize("power", [0.0, 1.0, 3.0])
    def test_corrected_holds_and_printed_fails_by_orders_of_magnitude(self, power: float) -> None:
        """Real top-k on real vectors, from entries that are all alike to a few that carry everything."""
        entries, draws = 4000, 400
        x = (np.arange(1, entries + 1) / entries) ** power
        tau = rng().exponential(4.0, draws)
        kept = np.minimum(np.floor(tau * 10e6 / (S * B / entries)), entries).astype(int)
        left = np.append(np.cumsum(x**2), 0.0)
        error = np.mean([left[entries - k - 1] if k < entries else 0.0 for k in kept]) / np.sum(x**2)
        corrected = bounds.lemma_3_sparsification_error(10e6, 4.0, S, B)
        printed = bounds.lemma_3_sparsification_error(10e6, 4.0, S, B, "printed")
        assert error <= corrected * 1.03
        assert error > 1e4 * printed

    def test_printed_gamma_is_the_chance_that_one_entry_gets_through(self) -> None:
        tau = rng().exponential(4.0, 200_000)
        one_gets_through = np.mean(tau * 100.0 / B >= 1)
        assert bounds.kept_share(100.0, 4.0, S, B, "printed") == pytest.approx(one_gets_through, rel=0.01)
        assert bounds.lemma_3_sparsification_error(10e6, 4.0, S, B) == pytest.approx(0.8886, abs=1e-4)

    def test_remark_2_has_the_direction_of_gamma_reversed(self) -> None:
        contact_s = np.geomspace(0.1, 1000, 50)
        for variant in ("printed", "corrected"):
            assert (np.diff(bounds.kept_share(1e6, contact_s, S, B, variant)) > 0).all()  # type: ignore[arg-type]


class TestLemma1:
    def test_printed_is_violated_by_one_stale_device_among_fresh_ones(self) -> None:
        """Nine devices meet the server in every round, the tenth never does and pulls the other way."""
        devices, rounds = 10, 40
        slopes = np.zeros((devices, 1))
        slopes[:-1], slopes[-1] = 1.0, -1.0
        met = np.ones((rounds, devices), dtype=np.bool_)
        met[:, -1] = False
        contacts = DrawnContacts(met=met, seconds=np.full(met.shape, 1.0))
        problem = Problem(optima=np.zeros((devices, 1)), slopes=slopes, smoothness=0.0)
        found = algorithm_1(problem, contacts, entries_per_s=1.0, learning_rate=1.0, rng=rng())
        printed = 2 * found.staleness_sq + found.printed_sq
        corrected = 6 * found.staleness_sq + 3 * found.undelivered_sq
        assert found.divergence[-1] > 1.5 * printed[-1]
        assert (found.divergence <= corrected + 1e-9).all()

    @pytest.mark.parametrize("point", GRID)
    def test_corrected_holds_in_every_round(self, point: tuple[float, float, float]) -> None:
        found = trial(constant_gradients(rng(), DEVICES, ENTRIES), point, 400, 0.3)
        bound = bounds.lemma_1_divergence(
            staleness_rounds_sq=found.staleness_sq,
            learning_rate=0.3,
            gradient_sq=found.largest_gradient_sq,
            undelivered_sq=found.undelivered_sq,
        )
        assert (found.divergence <= bound * (1 + 1e-9) + 1e-9).all()


class TestLemma4AndTheorems:
    @pytest.mark.parametrize("point", GRID)
    def test_memory_stays_below_both_forms_of_lemma_4(self, point: tuple[float, float, float]) -> None:
        contact_s, inter_contact_s, rate_bps = point
        found = trial(constant_gradients(rng(), DEVICES, ENTRIES), point, 1200, 1.0)
        gamma = bounds.kept_share(rate_bps, contact_s, ENTRIES, S * B / ENTRIES)
        theta = bounds.lemma_2_staleness(contact_s, inter_contact_s, ROUND_S, counting="start")
        printed_form, sharp = (
            float(bounds.lemma_4_memory(gamma, theta, 1.0, found.largest_gradient_sq, sharp=sharp))
            for sharp in (False, True)
        )
        assert sharp <= printed_form
        assert found.memory_sq[400:].mean() <= sharp * 1.1

    @pytest.mark.parametrize("point", GRID)
    def test_divergence_stays_below_the_mobility_factor(self, point: tuple[float, float, float]) -> None:
        found = trial(constant_gradients(rng(), DEVICES, ENTRIES), point, 1200, 1.0)
        assert factor(point, "sharp") <= factor(point, "corrected")
        assert found.divergence[400:].mean() <= factor(point, "sharp") * found.largest_gradient_sq

    @pytest.mark.parametrize("point", GRID)
    def test_gradients_stay_below_theorems_1_and_2(self, point: tuple[float, float, float]) -> None:
        rounds, noise = 600, 3.0
        problem = quadratic_problem(rng(), DEVICES, ENTRIES, noise=noise)
        eta = 1 / (2 * np.sqrt(rounds))
        found = trial(problem, point, rounds, eta)
        gap = loss(problem, np.zeros(ENTRIES)) - loss(problem, problem.optima.mean(axis=0))
        by_lemma_1 = 6 * found.staleness_sq * eta**2 * found.largest_gradient_sq + 3 * found.undelivered_sq
        constants = {"initial_gap": gap, "rounds": rounds, "smoothness": 1.0, "noise_sq": noise**2, "devices": DEVICES}
        first = bounds.theorem_1_gradient(learning_rate=eta, divergence=by_lemma_1.mean(), **constants)
        exact = bounds.theorem_1_gradient(learning_rate=eta, divergence=found.divergence.mean(), **constants)
        second = bounds.theorem_2_gradient(
            gradient_sq=found.largest_gradient_sq, factor=factor(point, "sharp"), **constants
        )
        assert found.gradient_sq.mean() <= exact <= first
        assert found.gradient_sq.mean() <= second

    def test_devices_differ_in_gradient_where_their_models_do_not(self) -> None:
        """The printed proof of Theorem 1 has |grad F(v) - grad F_n(w_n)|^2 <= L^2 |v - w_n|^2; at w_n = v it is not."""
        problem = quadratic_problem(rng(), DEVICES, ENTRIES, noise=0.0)
        same = np.zeros((DEVICES, ENTRIES))
        apart = np.square(problem.global_gradients(same) - problem.gradients(same)).sum()
        assert apart > 1.0
        # The mean over devices, which the corrected proof needs, does obey it.
        models = rng(3).standard_normal((DEVICES, ENTRIES))
        mean_apart = problem.global_gradients(same)[0] - problem.gradients(models).mean(axis=0)
        assert np.square(mean_apart).sum() <= np.square(models).sum(axis=1).mean()

    def test_the_factor_of_a_contact_is_the_rounds_after_it(self) -> None:
        """sum_r A(kappa^(r)) = sum over contacts of A times the rounds until the next contact; theta^(r) there is 0."""
        met = np.flatnonzero(rng().random(500) < 0.1) + 1
        value = rng(4).random(501)
        kappa = [max([0, *met[met <= r]]) for r in range(500)]
        gathered = [value[r] * (min([500, *met[met > r]]) - r) for r in [0, *met[met < 500]]]
        assert sum(value[k] for k in kappa) == pytest.approx(sum(gathered))
        assert all(r - kappa[r] == 0 for r in met[met < 500])

    def test_the_papers_own_steps_lead_to_minus_10(self) -> None:
        """(2 - gamma) |x|^2 + 2 theta^2 with |x|^2 <= (8 (1 - gamma^2) / gamma^2 + 2) Theta, times gamma^2."""
        gamma = Polynomial([0, 1])
        steps = (2 - gamma) * (8 * (1 - gamma**2) + 2 * gamma**2) + 2 * gamma**2
        assert steps.coef.tolist() == [16, -8, -10, 6]

    def test_the_corrected_coefficient_comes_from_lemma_1_and_lemma_4(self) -> None:
        gamma = Polynomial([0, 1])
        assert (6 * gamma**2 + 3 * (2 * 4 * (1 - gamma**2) + 2 * gamma**2)).coef.tolist() == [24, 0, -12]
        for value in (1e-4, 0.3, 1.0):
            q = np.sqrt(1 - value)
            sharp = bounds.mobility_coefficient(value, "sharp")
            assert sharp == pytest.approx(6 + 3 / (1 - q) ** 2, rel=1e-6)
            assert sharp <= bounds.mobility_coefficient(value)


class TestCorollary1:
    SPEEDS = np.geomspace(0.5, 20_000, 4001)

    def best(self, variant: BoundVariant, rate_bps: float = 15e6) -> float:
        found = bounds.corollary_1_factor(
            self.SPEEDS,
            contact_m=132.0,
            inter_contact_m=3000.0,
            rate_bps=rate_bps,
            round_s=ROUND_S,
            parameters=S,
            bits_per_entry=B,
            variant=variant,
        )
        return float(self.SPEEDS[found.argmin()])

    def test_best_speed_of_the_papers_setting(self) -> None:
        assert self.best("printed") > 1000
        assert 6 <= self.best("corrected") <= 30
        assert 6 <= self.best("sharp") <= 30

    def test_corrected_best_speed_grows_with_the_rate_and_printed_hardly_moves(self) -> None:
        assert self.best("corrected", 5e6) < self.best("corrected", 10e6) < self.best("corrected", 20e6) < 40
        assert self.best("printed", 5e6) > 1000

    def test_it_is_never_below_theorem_2(self) -> None:
        for variant in ("printed", "corrected", "sharp"):
            second = bounds.mobility_factor(
                rate_bps=15e6,
                contact_s=132.0 / self.SPEEDS,
                inter_contact_s=3000.0 / self.SPEEDS,
                round_s=ROUND_S,
                parameters=S,
                bits_per_entry=B,
                variant=variant,  # type: ignore[arg-type]
            )
            corollary = bounds.corollary_1_factor(
                self.SPEEDS,
                contact_m=132.0,
                inter_contact_m=3000.0,
                rate_bps=15e6,
                round_s=ROUND_S,
                parameters=S,
                bits_per_entry=B,
                variant=variant,  # type: ignore[arg-type]
            )
            assert (corollary >= second * (1 - 1e-12)).all()


def test_bounds_take_arrays_of_any_shape() -> None:
    contact_s, inter_contact_s = np.meshgrid([1.0, 4.0, 16.0], [100.0, 400.0])
    kwargs = {"round_s": 10.0, "parameters": S, "bits_per_entry": B, "rate_bps": 15e6}
    for variant in ("printed", "corrected", "sharp"):
        found = bounds.mobility_factor(contact_s=contact_s, inter_contact_s=inter_contact_s, variant=variant, **kwargs)  # type: ignore[arg-type]
        assert found.shape == (2, 3)
        one = bounds.mobility_factor(contact_s=4.0, inter_contact_s=400.0, variant=variant, **kwargs)  # type: ignore[arg-type]
        assert found[1, 1] == pytest.approx(float(one))


def test_all_is_kept_where_the_rate_has_no_limit() -> None:
    assert bounds.kept_share([np.inf, 1e300, 0.0], 4.0, 1000, 32).tolist() == pytest.approx([1.0, 1.0, 0.0])
