"""Monte Carlo, curves and measured constants on problems that can be followed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.theory.problems import ages, ages_at_contacts, loss, quadratic_problem
from torch import Tensor, nn

import wayfare
from wayfare.streams import FLEET, Stream, generator
from wayfare.theory.bounds import (
    kept_share,
    lemma_2_staleness,
    mobility_coefficient,
    mobility_factor,
    theorem_1_gradient,
)
from wayfare.theory.constants import Constants, MeasuredRun, _Watch
from wayfare.theory.curves import Setting, curves, dots
from wayfare.theory.montecarlo import DrawnContacts, Problem, algorithm_1, constant_gradients, draw_contacts


class Given:
    """A generator of given numbers."""

    def __init__(self, gaps_s: list[float], lengths_s: list[float], coin: float) -> None:
        self.columns, self.coin = [gaps_s, lengths_s], coin

    def exponential(self, mean: float, count: int) -> np.ndarray:
        given = self.columns.pop(0)
        return np.array([*given, *[1e9] * (count - len(given))])

    def random(self) -> float:
        return self.coin


@pytest.mark.parametrize("counting", ["start", "overlap"])
@pytest.mark.parametrize(("coin", "begins"), [(0.9, 12.0), (0.1, 0.0)])
def test_contacts_count_where_they_start_or_wherever_they_last(counting: str, coin: float, begins: float) -> None:
    # Gaps of 12, 30 and 4 s between contacts of 5, 21 and 3 s; in contact a share of 1 / 5 of the time.
    rng = Given([12.0, 30.0, 4.0], [5.0, 21.0, 3.0], coin)
    drawn = draw_contacts(
        rng,  # type: ignore[arg-type]
        contact_s=5.0,
        inter_contact_s=20.0,
        round_s=10.0,
        rounds=9,
        devices=1,
        counting=counting,  # type: ignore[arg-type]
    )
    seconds, met = np.zeros(9), np.zeros(9, bool)
    for start_s, length_s in ((begins, 5.0), (begins + 35.0, 21.0), (begins + 60.0, 3.0)):
        first, last = int(start_s // 10), int((start_s + length_s) // 10)
        seconds[first] += length_s
        met[first : (last if counting == "overlap" else first) + 1] = True
    assert drawn.seconds[:, 0].tolist() == seconds.tolist()
    assert drawn.met[:, 0].tolist() == met.tolist()


def test_stationary_contacts_last_as_long_as_they_should_from_the_first_round_on() -> None:
    rng = generator(0, Stream.MONTE_CARLO, FLEET)
    drawn = draw_contacts(rng, contact_s=6.0, inter_contact_s=14.0, round_s=10.0, rounds=300, devices=60)
    assert drawn.seconds.sum() / (300 * 10 * 60) == pytest.approx(0.3, rel=0.05)
    assert drawn.seconds[150:].sum() / (150 * 10 * 60) == pytest.approx(0.3, rel=0.07)


def test_ages_are_counted_from_the_last_contact() -> None:
    met = np.array([[0, 1], [1, 0], [0, 0], [0, 0], [1, 1]], dtype=bool)
    assert ages(met).tolist() == [[1, 0], [0, 1], [1, 2], [2, 3], [0, 0]]
    assert sorted(ages_at_contacts(met).tolist()) == [3, 4]
    assert len(ages_at_contacts(np.zeros((5, 0), bool))) == 0


def test_the_problem_is_its_formula() -> None:
    problem = Problem(
        optima=np.array([[1.0, 2.0], [3.0, 0.0]]), slopes=np.array([[1.0, 0.0], [0.0, 5.0]]), smoothness=2.0
    )
    models = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert problem.gradients(models).tolist() == [[-1.0, -4.0], [-4.0, 7.0]]
    assert problem.global_gradients(models).tolist() == [[-3.5, 0.5], [-1.5, 2.5]]
    # (1 + 1) + 2 and (4 + 1) + 5, at (2, 1) in the mean.
    first = 0.5 * 2 * (1 + 1) + 2.0
    second = 0.5 * 2 * (1 + 1) + 5.0
    assert loss(problem, np.array([2.0, 1.0])) == pytest.approx((first + second) / 2)
    bowls = quadratic_problem(np.random.default_rng(0), 400, 50, noise=0.5)
    assert (bowls.smoothness, bowls.noise) == (1.0, 0.5)
    assert bowls.optima.mean() == pytest.approx(1.0, abs=0.05)
    assert bowls.optima.std() == pytest.approx(1.0, abs=0.05)
    assert not bowls.slopes.any()
    steady = constant_gradients(np.random.default_rng(0), 3, 6)
    assert set(steady.slopes.ravel().tolist()) == {-1.0, 1.0}
    assert np.all(steady.slopes[:, ::2] == steady.slopes[0, ::2])
    # Shared gradients and those of each device alone go either way.
    many = constant_gradients(np.random.default_rng(0), 3, 2000).slopes
    assert np.all(many[:, ::2] == many[0, ::2])
    for signs in (many[0, ::2], *many[:, 1::2]):
        assert abs(signs.mean()) < 0.15
    assert abs((many[0, 1::2] * many[1, 1::2]).mean()) < 0.15
    assert (steady.smoothness, steady.optima.any()) == (0.0, False)


def test_algorithm_1_step_by_step() -> None:
    """Two devices with the gradients (3, 1) and (0, -2), a rate of 1; the first meets the server in rounds 1 and 3."""
    problem = Problem(optima=np.zeros((2, 2)), slopes=np.array([[3.0, 1.0], [0.0, -2.0]]), smoothness=0.0)
    contacts = DrawnContacts(
        met=np.array([[0, 0], [1, 0], [0, 0], [1, 1]], bool), seconds=np.array([[0.0, 0], [1.5, 0], [0, 0], [1.0, 9.0]])
    )
    found = algorithm_1(problem, contacts, entries_per_s=1.0, learning_rate=1.0, rng=np.random.default_rng(0))
    # v moves by (-1.5, 0.5) a round; w_1 by (-3, -1) and becomes (-3, 0) after round 1; w_2 by (0, 2).
    models = [((0, 0), (0, 0)), ((-3, -1), (0, 2)), ((-3, 0), (0, 4)), ((-6, -1), (0, 6))]
    virtual = [(-1.5 * r, 0.5 * r) for r in range(4)]
    divergence = [
        np.mean([sum((v - w) ** 2 for v, w in zip(virtual[r], model, strict=True)) for model in models[r]])
        for r in range(4)
    ]
    assert found.divergence == pytest.approx(divergence)
    assert found.staleness_sq == pytest.approx([0, (1 + 1) / 2, (0 + 4) / 2, (1 + 9) / 2])
    assert found.kept_share == pytest.approx((0.5 + 0.5 + 1.0) / 3)
    assert found.staleness_at_contact_sq == pytest.approx((4 + 4 + 16) / 3)
    assert found.largest_gradient_sq == 10.0
    assert found.gradient_sq == pytest.approx([1.5**2 + 0.5**2] * 4)
    # After round 1 the first remembers (0, 2) of (6, 2), and nothing was learned since; the second has (0, -4).
    assert found.memory_sq == pytest.approx([0, 0, 4 / 2, 4 / 2])
    after_first = (4 + 16) / 2
    assert found.undelivered_sq == pytest.approx([0, 0, after_first / 2, after_first / 2])
    printed = (5 - 3 * 0.5) * 40
    assert found.printed_sq == pytest.approx([0, 0, printed / 2, printed / 2])


def test_noise_counts_in_the_largest_gradient() -> None:
    problem = Problem(optima=np.zeros((1, 400)), slopes=np.zeros((1, 400)), smoothness=0.0, noise=3.0)
    nobody = DrawnContacts(met=np.zeros((2, 1), bool), seconds=np.zeros((2, 1)))
    found = algorithm_1(problem, nobody, entries_per_s=1.0, learning_rate=2.0, rng=np.random.default_rng(0))
    assert found.largest_gradient_sq == 9.0
    assert (found.kept_share, found.staleness_at_contact_sq) == (0.0, 0.0)
    # |v - w|^2 is 0 of one device; its model moved by 2 times noise of length 3.
    assert found.divergence.tolist() == [0.0, 0.0]
    assert Problem(optima=problem.optima, slopes=problem.slopes, smoothness=0.0).noise == 0.0
    moved = algorithm_1(
        Problem(optima=np.zeros((2, 400)), slopes=np.zeros((2, 400)), smoothness=0.0, noise=3.0),
        DrawnContacts(met=np.zeros((2, 2), bool), seconds=np.zeros((2, 2))),
        entries_per_s=1.0,
        learning_rate=2.0,
        rng=np.random.default_rng(0),
    )
    # Half the difference of two independent steps of length 6.
    assert moved.divergence[1] == pytest.approx(36 / 2, rel=0.2)


def test_the_papers_setting() -> None:
    setting = Setting()
    assert (setting.contact_s, setting.inter_contact_s, setting.contact_m, setting.inter_contact_m) == (
        4,
        100,
        132,
        3000,
    )
    assert (setting.rate_bps, setting.round_s, setting.parameters, setting.value_bits) == (15e6, 10.0, 6_568_650, 32)
    assert setting.bits_per_entry == pytest.approx(32 + math.log2(6_568_650))
    values = np.array([2.0, 4.0])
    assert [times.tolist() for times in setting.times_s("speed", values)] == [[66, 33], [1500, 750]]
    assert [times.tolist() for times in setting.times_s("contact", values)] == [[2, 4], [100, 100]]
    assert [times.tolist() for times in setting.times_s("inter-contact", values)] == [[4, 4], [2, 4]]


def test_curves_are_the_bounds_at_every_value() -> None:
    setting, values = Setting(), np.geomspace(1.0, 100.0, 31)
    contact_s, inter_contact_s = setting.times_s("speed", values)
    radio = {"rate_bps": 15e6, "parameters": 6_568_650, "bits_per_entry": setting.bits_per_entry}
    for curve in curves("speed", setting, values):
        times = {"contact_s": contact_s, "inter_contact_s": inter_contact_s, "round_s": 10.0}
        factor = mobility_factor(**radio, **times, counting="start", variant=curve.variant)
        gamma = kept_share(15e6, contact_s, 6_568_650, setting.bits_per_entry, curve.variant)
        theta = lemma_2_staleness(**times, counting="start", variant=curve.variant)
        np.testing.assert_allclose(curve.factor, factor)
        np.testing.assert_allclose(curve.sparsification_error, 1 - gamma)
        np.testing.assert_allclose(curve.staleness_square, theta)
        assert (curve.best_factor, curve.best) == (factor.min(), values[factor.argmin()])
        assert curve.inside == (0 < factor.argmin() < 30)
    for ends in (values[:2], values[-2:]):
        assert not any(curve.inside for curve in curves("speed", setting, ends))
    (middle,) = (curve for curve in curves("speed", setting, np.array([1e-3, 20.0, 1e4])) if curve.variant == "sharp")
    assert (middle.best, middle.inside) == (20.0, True)


def test_dots_lie_where_the_theory_says() -> None:
    setting = Setting(rate_bps=30e6)
    first, second = dots("contact", setting, [4.0, 8.0], seed=0)
    assert (first.at, second.at) == (4.0, 8.0)
    exact = 1 - kept_share(30e6, np.array([4.0, 8.0]), 128, setting.parameters * setting.bits_per_entry / 128)
    assert [first.sparsification_error, second.sparsification_error] == pytest.approx(exact.tolist(), rel=0.05)
    for dot, contact_s in ((first, 4.0), (second, 8.0)):
        assert dot.staleness_square == pytest.approx(float(_at_contact_square(contact_s)), rel=0.15)
        assert 0 < dot.divergence < 1e5
    # 800 rounds of 20 devices with 128 entries, of which the last two thirds count.
    rng = generator(0, Stream.MONTE_CARLO, FLEET)
    met = draw_contacts(rng, contact_s=4.0, inter_contact_s=100.0, round_s=10.0, rounds=800, devices=20)
    problem = constant_gradients(rng, 20, 128)
    entries_per_s = 30e6 * 128 / (setting.parameters * setting.bits_per_entry)
    trial = algorithm_1(problem, met, entries_per_s=entries_per_s, learning_rate=1.0, rng=rng)
    assert first.divergence == pytest.approx(trial.divergence[266:].mean() / 128)
    assert next(dots("contact", setting, [4.0], seed=0)) == first
    assert next(dots("contact", setting, [4.0], seed=1)) != first


def _at_contact_square(contact_s: float) -> np.ndarray:
    from wayfare.theory.staleness import staleness_moments

    return staleness_moments(contact_s, 100.0, 10.0, "start").at_contact_square


def measured(**changes: object) -> MeasuredRun:
    plain: dict[str, Any] = {
        "scenario": wayfare.load("fashion-small", ["fleet.devices=8", "learning.learning_rate=0.1"])
    }
    plain |= {"scheme": "mads", "seed": 0, "rounds": np.array([0, 10, 40]), "gradient_sq": np.array([8.0, 2.0, 1.0])}
    plain |= {"loss": np.array([3.0, 2.0, 1.0]), "kept_share": 0.36, "staleness_square": 7.0}
    constants = Constants(smoothness=3.0, gradient_sq=5.0, noise_sq=25.0, initial_gap=2.0)
    return MeasuredRun(**{**plain, "constants": constants, **changes})  # type: ignore[arg-type]


def test_the_mean_gradient_weighs_every_round_alike() -> None:
    assert measured().mean_gradient_sq().tolist() == [8.0, (10 * 8 + 30 * 2) / 40]


@pytest.mark.parametrize(("variant", "gamma"), [("corrected", 0.36), ("sharp", 0.36), ("printed", 1.0)])
def test_the_bound_of_a_run_is_theorem_1_with_its_constants(variant: str, gamma: float) -> None:
    found = measured().bound(variant)  # type: ignore[arg-type]
    divergence = mobility_coefficient(gamma, variant) * 7.0 * 0.01 * 5.0  # type: ignore[arg-type]
    expected = theorem_1_gradient(
        initial_gap=2.0,
        learning_rate=0.1,
        rounds=np.array([10, 40]),
        smoothness=3.0,
        noise_sq=25.0,
        devices=8,
        divergence=divergence,
        variant=variant,  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(found, expected)


class Bowl(nn.Module):
    """A model of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


class Bowls:
    """F(w) = (L/2) |w - mean of samples|^2 with L = 3, and samples on a line."""

    model = SimpleNamespace(module=Bowl)

    def loss(self, module: Bowl, samples: Tensor) -> Tensor:
        return 1.5 * (module.w - samples.double().mean().float()).square().sum()


def watched(*held: list[float]) -> tuple[_Watch, Bowl]:
    """Devices that hold some samples, of which a batch is the first; a round later it is the next."""

    def batches_of(device: int, first: int, rounds: int) -> list[np.ndarray]:
        assert (first, rounds) == (next(due), 1)
        return [np.array(held[device][:1])]

    # Each look takes a round of its own, and there are ten.
    due = (1 + look % 10 for look in range(1, 100) for _ in held)
    batches = SimpleNamespace(of=batches_of)
    world = SimpleNamespace(held=list(map(np.array, held)), batches=batches, scenario=SimpleNamespace(rounds=10))
    return _Watch(world, None), Bowl()  # type: ignore[arg-type]


def test_constants_of_a_bowl_are_those_it_was_made_with() -> None:
    watch, module = watched([1.0, 3.0], [4.0])
    for place in (10.0, 1.0):
        with torch.no_grad():
            module.w.fill_(place)
        watch.look(Bowls(), module)
    # Devices have their optima at 2 and 4, all devices together at 3; batches of the first device lie at 1.
    assert watch.gradient_sq == pytest.approx([2 * (3 * 7) ** 2, 2 * (3 * 2) ** 2])
    losses = [[3 * 8.0**2, 3 * 6.0**2], [3 * 1.0**2, 3 * 3.0**2]]
    assert watch.loss == pytest.approx([np.mean(pair) for pair in losses])
    assert watch.smoothness == pytest.approx(3.0, rel=1e-4)
    assert watch.largest_sq == pytest.approx(2 * (3 * 9) ** 2)
    assert watch.noise_sq == pytest.approx(2 * 3**2)


def test_a_model_that_stands_still_says_the_same_again() -> None:
    watch, module = watched([1.0, 3.0], [4.0])
    watch.look(Bowls(), module)
    for round_ in (0, 5):
        watch.on_evaluation(SimpleNamespace(round=round_), [])  # type: ignore[arg-type]
    assert watch.rounds == [0, 5]
    assert watch.loss[0] == watch.loss[1]
    assert len(watch.gradient_sq) == 2
    watch.on_contact(SimpleNamespace(entries=7, staleness_rounds=3))  # type: ignore[arg-type]
    assert (watch.entries, watch.staleness) == ([7], [3])


def test_a_model_at_its_optimum_has_no_way_to_look_along() -> None:
    watch, module = watched([0.0])
    watch.look(Bowls(), module)
    assert (watch.smoothness, watch.noise_sq, watch.largest_sq) == (0.0, 0.0, 0.0)


def test_a_learning_rate_above_half_the_inverse_of_smoothness_is_said_to_be() -> None:
    constants = Constants(smoothness=5.0, gradient_sq=1.0, noise_sq=0.1, initial_gap=1.0)
    assert constants.rate_is_small_enough(0.1)
    assert not constants.rate_is_small_enough(0.11)
    assert constants.rate_is_small_enough(0.1 * (1 - 1e-9))
    assert not constants.rate_is_small_enough(0.1 * (1 + 1e-9))


def test_a_run_that_kept_nothing_has_a_bound() -> None:
    assert np.isfinite(measured(kept_share=0.0).bound("corrected")).all()


def test_a_watch_takes_another_round_for_every_look() -> None:
    watch, module = watched([1.0, 3.0], [4.0])
    for _ in range(12):
        watch.look(Bowls(), module)
    assert len(watch.loss) == 12


def test_an_evaluation_without_a_look_repeats_the_last_one() -> None:
    watch, module = watched([1.0, 3.0])
    for round_, place in ((0, 10.0), (5, 1.0), (10, None)):
        if place is not None:
            with torch.no_grad():
                module.w.fill_(place)
            watch.look(Bowls(), module)
        watch.on_evaluation(SimpleNamespace(round=round_), [])  # type: ignore[arg-type]
    assert watch.loss == pytest.approx([3 * 8.0**2, 3 * 1.0**2, 3 * 1.0**2])
    assert watch.gradient_sq == pytest.approx([2 * 24.0**2, 2 * 3.0**2, 2 * 3.0**2])


class Hills(Bowls):
    """F(w) = |w|^4 / 4 with the gradient |w|^2 w, steeper further out."""

    def loss(self, module: Bowl, samples: Tensor) -> Tensor:
        return module.w.square().sum().square() / 4


def test_smoothness_is_the_steepest_secant_along_the_gradient_or_between_models() -> None:
    watch, module = watched([0.0])
    with torch.no_grad():
        module.w.copy_(torch.tensor([2.0, 0.0]))
    watch.look(Hills(), module)
    # A hundredth of the model's length towards 0: from 2^3 to 1.98^3 over 0.02.
    assert watch.smoothness == pytest.approx((2**3 - 1.98**3) / 0.02, rel=1e-3)
    with torch.no_grad():
        module.w.copy_(torch.tensor([0.0, 1.0]))
    watch.look(Hills(), module)
    assert watch.smoothness == pytest.approx((2**3 - 1.98**3) / 0.02, rel=1e-3)
    with torch.no_grad():
        module.w.copy_(torch.tensor([0.0, -4.0]))
    watch.look(Hills(), module)
    assert watch.smoothness == pytest.approx((4**3 - 3.96**3) / 0.04, rel=1e-3)
    flat, still = watched([0.0])
    with torch.no_grad():
        still.w.copy_(torch.tensor([0.5, 0.0]))
    flat.look(Hills(), still)
    inner = flat.smoothness
    with torch.no_grad():
        still.w.copy_(torch.tensor([-3.0, 0.0]))
    flat._step = lambda *_: None  # type: ignore[method-assign, assignment]
    flat.look(Hills(), still)
    # Between the two models: from 0.125 to -27 over 3.5.
    assert flat.smoothness == pytest.approx(27.125 / 3.5, rel=1e-3)
    assert inner < flat.smoothness
