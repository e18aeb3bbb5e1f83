"""Each published server rule against a dense computation of the paper's equations in NumPy.

Updates are received - local, so a step along an update is a subtraction.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import Arrival, LocalRule, ServerRule, ServerTerms, make_method, published
from wayfare.methods.published.ca2fl import CalibratedBuffer
from wayfare.methods.published.fadas import AdaptiveBuffer
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.published.feddyn import DynamicRegulariser, DynamicServer
from wayfare.methods.published.scaffold import ControlVariates, Corrected
from wayfare.methods.published.staleness_weighted import StalenessWeights
from wayfare.methods.servers import Add
from wayfare.sparsify import Sparse

DEVICES, ENTRIES, STATISTICS = 4, 6, 2
WEIGHTS = ENTRIES - STATISTICS
TERMS = ServerTerms(devices=DEVICES, statistics=STATISTICS)
Vector = np.ndarray


def uploads(seed: int, rounds: int = 15) -> list[list[Arrival]]:
    """What some devices send in each round: a few entries or all of them, after all sorts of delays."""
    rng = np.random.default_rng(seed)
    drawn = []
    for round_ in range(1, rounds + 1):
        devices = np.flatnonzero(rng.random(DEVICES) < 0.5)
        drawn.append([_upload(rng, int(device), round_) for device in devices])
    return drawn


def _upload(rng: np.random.Generator, device: int, round_: int) -> Arrival:
    entries = np.flatnonzero(rng.random(ENTRIES) < rng.choice([0.5, 1.0]))
    sent = Sparse(torch.from_numpy(entries), torch.from_numpy(rng.standard_normal(len(entries))))
    return Arrival(device=device, sent=sent, staleness_rounds=int(rng.integers(1, 40)), round=round_)


def dense(arrival: Arrival) -> Vector:
    vector = np.zeros(ENTRIES)
    vector[arrival.sent.indices.numpy()] = arrival.sent.values.numpy()
    return vector


def models(rule: ServerRule, rounds: Sequence[Sequence[Arrival]], terms: ServerTerms = TERMS) -> Iterator[Vector]:
    """The model after each round."""
    model = torch.linspace(-1, 1, ENTRIES, dtype=torch.float64)
    state = rule.init(model, terms)
    for arrivals in rounds:
        if arrivals:
            model, state = rule.apply(model, state, arrivals, terms)
        yield model.numpy()


def assert_same(rule: ServerRule, reference: Callable[[Vector, Sequence[Arrival]], Vector], seed: int = 0) -> None:
    """A rule and a reference that takes one round after another come to the same models."""
    rounds = uploads(seed)
    expected = np.linspace(-1, 1, ENTRIES)
    for arrivals, found in zip(rounds, models(rule, rounds), strict=True):
        expected = reference(expected.copy(), arrivals)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def scaled(step: float) -> Vector:
    """A step for each entry: statistics of normalisation are moved by 1."""
    return np.where(np.arange(ENTRIES) < WEIGHTS, step, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_fedbuff_takes_a_step_along_the_mean_of_every_full_buffer(seed: int) -> None:
    held: list[Vector] = []

    def reference(model: Vector, arrivals: Sequence[Arrival]) -> Vector:
        for arrival in arrivals:
            held.append(dense(arrival))
            if len(held) == 3:
                model -= scaled(0.7) * np.mean(held, axis=0)
                held.clear()
        return model

    assert_same(Buffer(size=3, step=0.7), reference, seed)


def test_a_buffer_of_one_with_a_fleet_of_one_is_algorithm_1() -> None:
    terms = ServerTerms(devices=1)
    rounds = uploads(1)
    for one, other in zip(models(Buffer(size=1), rounds, terms), models(Add(), rounds, terms), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_old_updates_are_added_with_a_smaller_weight(exponent: float) -> None:
    def reference(model: Vector, arrivals: Sequence[Arrival]) -> Vector:
        for arrival in arrivals:
            model -= dense(arrival) / (1 + arrival.staleness_rounds) ** exponent / DEVICES
        return model

    assert_same(StalenessWeights(exponent), reference)


@pytest.mark.parametrize("seed", range(3))
def test_ca2fl_calibrates_a_buffer_by_the_cached_update_of_every_device(seed: int) -> None:
    cached, held = np.zeros((DEVICES, ENTRIES)), list[tuple[int, Vector]]()

    def reference(model: Vector, arrivals: Sequence[Arrival]) -> Vector:
        for arrival in arrivals:
            held.append((arrival.device, dense(arrival)))
            if len(held) == 3:
                model -= scaled(0.7) * (cached.mean(0) + np.mean([x - cached[device] for device, x in held], axis=0))
                for device, x in held:
                    cached[device, :WEIGHTS] = x[:WEIGHTS]
                held.clear()
        return model

    assert_same(CalibratedBuffer(size=3, step=0.7), reference, seed)


def test_ca2fl_with_steady_updates_steps_along_the_mean_of_the_fleet_whoever_comes() -> None:
    steady = np.random.default_rng(3).standard_normal((DEVICES, ENTRIES))
    everything = torch.arange(ENTRIES)
    each = [Arrival(device=n, sent=Sparse(everything, torch.from_numpy(x))) for n, x in enumerate(steady)]
    before, after = models(CalibratedBuffer(size=4), [each, [each[0], each[0], each[1], each[0]]])
    np.testing.assert_allclose((before - after)[:WEIGHTS], steady.mean(0)[:WEIGHTS], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_fadas_takes_steps_of_amsgrad_that_are_short_after_long_delays(seed: int) -> None:
    rule = AdaptiveBuffer(size=3, step=0.2, momentum=0.8, second_moment=0.9, epsilon=1e-3, threshold_rounds=20)
    held, moments, steps = list[Arrival](), np.zeros((3, WEIGHTS)), list[float]()

    def reference(model: Vector, arrivals: Sequence[Arrival]) -> Vector:
        for arrival in arrivals:
            held.append(arrival)
            if len(held) == 3:
                mean, delay = np.mean([dense(each) for each in held], axis=0), max(a.staleness_rounds for a in held)
                d = mean[:WEIGHTS]
                moments[0] = 0.8 * moments[0] + 0.2 * d
                moments[1] = 0.9 * moments[1] + 0.1 * d**2
                moments[2] = np.maximum(moments[2], moments[1])
                steps.append(0.2 if delay <= 20 else min(0.2, 1 / delay))
                model[:WEIGHTS] -= steps[-1] * moments[0] / (np.sqrt(moments[2]) + 1e-3)
                model[WEIGHTS:] -= mean[WEIGHTS:]
                held.clear()
        return model

    assert_same(rule, reference, seed)
    assert min(steps) < 1 / 20 + 1e-12


# f_n(w) = 1/2 sum of a_n (w - b_n)^2: devices disagree about the optimum and about how much each entry matters.
_RNG = np.random.default_rng(7)
CURVATURE, CENTRE = _RNG.uniform(0.2, 2.0, (DEVICES, ENTRIES)), _RNG.standard_normal((DEVICES, ENTRIES))
OPTIMUM = (CURVATURE * CENTRE).sum(0) / CURVATURE.sum(0)
RATE, FLEET = 0.1, ServerTerms(devices=DEVICES)


def gradient(device: int, w: Vector) -> Vector:
    return CURVATURE[device] * (w - CENTRE[device])


def visits(rounds: int, *, all_devices: bool) -> list[list[int]]:
    """Who meets the server in each round; all of them, or each with a chance of its own."""
    rng, chance = np.random.default_rng(11), np.array([0.2, 0.4, 0.6, 0.8])
    return [[n for n in range(DEVICES) if all_devices or rng.random() < chance[n]] for _ in range(rounds)]


def trained(rule: ServerRule, local: LocalRule, plan: Sequence[Sequence[int]], steps: int) -> list[Vector]:
    """The models of a fleet that takes so many local steps a round, with the parts at work as a run has them."""
    model = torch.zeros(ENTRIES, dtype=torch.float64)
    state, found = rule.init(model, FLEET), []
    received, since = [model] * DEVICES, [0] * DEVICES
    states, own = [local.init(model)] * DEVICES, [model.numpy().copy() for _ in range(DEVICES)]
    for round_, met in enumerate(plan, start=1):
        for n in range(DEVICES):
            correction = local.correction(states[n])
            added = 0.0 if correction is None else correction.numpy()
            for _ in range(steps):
                own[n] -= RATE * (gradient(n, own[n]) + local.pull() * (own[n] - received[n].numpy()) + added)
        arrivals = []
        for n in met:
            change = received[n] - torch.from_numpy(own[n])
            states[n] = local.delivered(states[n], change)
            reach = RATE * steps * (round_ - since[n])
            arrivals.append(Arrival(device=n, sent=Sparse(torch.arange(ENTRIES), change), reach=reach))
        if arrivals:
            model, state = rule.apply(model, state, arrivals, FLEET)
        for n in met:
            states[n] = local.received(states[n], rule.handed(state, n))
            received[n], since[n], own[n] = model, round_, model.numpy().copy()
        found.append(model.numpy())
    return found


def test_scaffold_in_a_fleet_that_always_meets_is_option_2_of_the_paper() -> None:
    x, c, own = np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros((DEVICES, ENTRIES))
    for found in trained(ControlVariates(), Corrected(), visits(20, all_devices=True), steps=5):
        moves, variates = [], []
        for n in range(DEVICES):
            y = x.copy()
            for _ in range(5):
                y -= RATE * (gradient(n, y) - own[n] + c)
            variates.append(own[n] - c + (x - y) / (5 * RATE))
            moves.append(y - x)
        x = x + np.mean(moves, axis=0)
        c = c + np.mean(np.array(variates) - own, axis=0)
        own = np.array(variates)
        np.testing.assert_allclose(found, x, rtol=1e-10, atol=1e-12)


def test_control_variates_are_the_mean_raw_gradients_between_two_visits() -> None:
    """Whatever the correction was: that is what the server takes off again."""
    rule, model = ControlVariates(), torch.zeros(ENTRIES, dtype=torch.float64)
    state = rule.init(model, FLEET)
    raw = np.random.default_rng(5).standard_normal((6, DEVICES, ENTRIES))
    for gradients in raw:
        arrivals = []
        for n in range(DEVICES):
            correction = rule.handed(state, n).get("correction", 0.0)
            sent = Sparse(torch.arange(ENTRIES), 0.3 * (torch.from_numpy(gradients[n]) + correction))
            arrivals.append(Arrival(device=n, sent=sent, reach=0.3))
        model, state = rule.apply(model, state, arrivals, FLEET)
        np.testing.assert_allclose(state["mean"], gradients.mean(0), rtol=1e-10)
        for n in range(DEVICES):
            correction = rule.handed(state, n)["correction"]
            np.testing.assert_allclose(correction, gradients.mean(0) - gradients[n], rtol=1e-9, atol=1e-12)


def test_statistics_and_partial_uploads_take_no_part_in_control_variates() -> None:
    rule, model = ControlVariates(), torch.zeros(ENTRIES, dtype=torch.float64)
    whole = Sparse(torch.arange(ENTRIES), torch.ones(ENTRIES, dtype=torch.float64))
    some = Sparse(torch.tensor([1]), torch.ones(1, dtype=torch.float64))
    state = rule.init(model, TERMS)
    assert not rule.handed(state, 0)
    model, state = rule.apply(model, state, [Arrival(device=0, sent=whole, reach=0.5)], TERMS)
    expected = np.where(np.arange(ENTRIES) < WEIGHTS, 2.0 / DEVICES - 2.0, 0.0)
    np.testing.assert_allclose(rule.handed(state, 0)["correction"], expected)
    model, after = rule.apply(model, state, [Arrival(device=0, sent=some, reach=0.5)], TERMS)
    assert after["variates"]["0"] is state["variates"]["0"]
    np.testing.assert_allclose(model, -(np.ones(ENTRIES) + np.eye(ENTRIES)[1]) / DEVICES)
    # Nor does an upload without a step behind it.
    model, after = rule.apply(model, state, [Arrival(device=0, sent=whole, reach=0.0)], TERMS)
    assert after["variates"]["0"] is state["variates"]["0"]


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_feddyn_in_a_fleet_that_always_meets_is_the_paper_with_full_participation(strength: float) -> None:
    plan = visits(20, all_devices=True)
    theta, h, own = np.zeros(ENTRIES), np.zeros(ENTRIES), np.zeros((DEVICES, ENTRIES))
    for found in trained(DynamicServer(), DynamicRegulariser(strength=strength), plan, steps=5):
        local = np.tile(theta, (DEVICES, 1))
        for n in range(DEVICES):
            for _ in range(5):
                local[n] -= RATE * (gradient(n, local[n]) - own[n] + strength * (local[n] - theta))
        own -= strength * (local - theta)
        h = h - strength * (local - theta).mean(0)
        theta = local.mean(0) - h / strength
        np.testing.assert_allclose(found, theta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("all_devices", [True, False])
@pytest.mark.parametrize(
    ("rule", "local"), [(ControlVariates(), Corrected()), (DynamicServer(), DynamicRegulariser(strength=1.0))]
)
def test_drift_is_gone_where_plain_updates_keep_it(rule: ServerRule, local: LocalRule, all_devices: bool) -> None:
    """Local steps lead each device towards its own optimum; corrected ones lead the fleet to that of the mean loss."""
    plan = visits(600, all_devices=all_devices)
    drifted = trained(Add(), LocalRule(), plan, steps=5)[-1]
    found = trained(rule, local, plan, steps=5)[-1]
    assert np.linalg.norm(found - OPTIMUM) < 1e-3 * np.linalg.norm(drifted - OPTIMUM)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("afl + control-variates", "local rule that uses them"),
        ("scaffold + relays", "relays carry models"),
        ("scaffold + corrected(momentum=0.9)", "derives gradients from updates"),
        ("afl + dynamic-server", "dynamic-regulariser"),
        ("feddyn + dynamic-regulariser(strength=0)", "strength above 0"),
        ("afl + buffer(size=0)", "at least 1"),
        ("afl + buffer(size=2.5)", "whole number"),
        ("afl + buffer(step=0)", "above 0"),
        ("afl + staleness-weights(exponent=-1)", "at least 0"),
        ("afl + adaptive-buffer(momentum=1)", "below 1"),
    ],
)
def test_parts_that_cannot_work_together_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        make_method(text, wayfare.load("fashion-small"))


@pytest.mark.parametrize("file", sorted(Path(published.__file__).parent.glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_a_published_method_is_one_short_file_with_its_reference(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 60
    about = ast.get_docstring(ast.parse(text)) or ""
    assert any(year in about for year in map(str, range(2010, 2030)))
