"""What a local rule declares about its steps: as PyTorch's own optimiser takes them, and the same in every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, job, lane_job, lane_starts, run, starts
from tests.engine.slots import run_in_a_slot
from tests.engine.test_engines import CPU_ENGINES, FAST, SHORT
from torch import Tensor

from wayfare.engine import Burst, Compute, Precision, make_engine
from wayfare.errors import ScenarioError
from wayfare.learning.descent import Descent, descent_of
from wayfare.learning.models.base import Model, load_vector, read_vector
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.methods import LocalRule
from wayfare.scenario.model import Learning

DESCENTS = {
    "pull": Descent(pull=0.7),
    "corrected": Descent(corrected=True),
    "clipped": Descent(clip_norm=0.9),
    "decay": Descent(weight_decay=0.05),
    "momentum": Descent(momentum=0.8),
    "three steps": Descent(steps_per_round=3),
    "corrected momentum": Descent(corrected=True, momentum=0.6, weight_decay=0.1),
    "everything": Descent(pull=0.4, corrected=True, clip_norm=0.9, weight_decay=0.05, momentum=0.7, steps_per_round=2),
}
PERCEPTRON, CNN, RESNET = Mlp((12, 8, 5)), SmallCnn(image=(1, 8, 8), channels=(4, 6), hidden=7), Resnet9(width=4)
LANES = LaneGcn(width=16, modes=3)
EVERY = pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)


def steered(bursts: Sequence[Burst], local: Job, dtype: torch.dtype) -> list[Burst]:
    """Bursts with vectors of their own as far as the descent has use for them; one of them has no correction."""
    model, descent = local.training.task.model, local.training.descent
    where = local.training.compute.device

    def vectors(seed: int, entries: int, size: float) -> Tensor:
        noise = np.random.default_rng(seed).standard_normal((local.devices, entries))
        return torch.from_numpy(size * noise).to(where, dtype)

    entries = model.parameters + model.statistics
    received, correction = starts(local, dtype).roll(1, dims=0), vectors(1, entries, 0.05)
    velocity = vectors(2, model.parameters, 0.05)
    return [
        replace(
            burst,
            received=received[burst.device] if descent.pull else None,
            correction=correction[burst.device] if descent.corrected and burst.device != 2 else None,
            velocity=velocity[burst.device].clone() if descent.momentum else None,
        )
        for burst in bursts
    ]


def agree(found: Tensor, expected: Tensor, initial: Tensor) -> None:
    """Updates are equal, device by device."""
    errors, updates = (found - expected).norm(dim=1), (expected - initial).norm(dim=1)
    assert bool((errors <= 1e-9 * updates.clamp(min=1e-12)).all()), errors / updates


def velocities_of(bursts: Sequence[Burst]) -> Tensor:
    return torch.stack([torch.zeros(1) if burst.velocity is None else burst.velocity for burst in bursts])


@EVERY
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_reference_takes_the_steps_of_sgd(descent: Descent, schedule: str) -> None:
    """Written out with `torch.optim.SGD` and `clip_grad_norm_`, which adds 1e-6 to the norm it divides by."""
    local = job(PERCEPTRON, descent=descent, schedule=schedule)  # type: ignore[arg-type]
    training, in_round = local.training, descent.steps_per_round
    initial = starts(local, torch.float64)
    (burst,) = steered([Burst(4, 3, 5)], local, torch.float64)
    if burst.velocity is not None:
        burst.velocity.zero_()
    found = initial[4].clone()
    make_engine("reference", training).run([found], [burst])

    module = PERCEPTRON.module().double()
    load_vector(module, initial[4])
    weights = list(module.parameters())
    sgd = torch.optim.SGD(weights, lr=0.1, momentum=descent.momentum, weight_decay=descent.weight_decay)
    norms = []
    for round_ in range(3, 8):
        sgd.param_groups[0]["lr"] = 0.1 * (1.0 if schedule == "constant" else 1 - (round_ - 1) / 40)
        for step in range(in_round):
            samples = torch.from_numpy(training.batches.of(4, (round_ - 1) * in_round + step + 1, 1)[0])
            loss = training.task.loss(module, samples)
            if burst.received is not None:
                at = torch.cat([weight.flatten() for weight in weights])
                loss = loss + descent.pull / 2 * (at - burst.received).square().sum()
            sgd.zero_grad()
            loss.backward()
            if burst.correction is not None:
                pieces = burst.correction.split_with_sizes([weight.numel() for weight in weights])
                for weight, piece in zip(weights, pieces, strict=True):
                    assert weight.grad is not None
                    weight.grad += piece.view_as(weight)
            if descent.clip_norm is not None:
                norms.append(float(torch.nn.utils.clip_grad_norm_(weights, descent.clip_norm)))
            sgd.step()
    if norms:
        assert descent.clip_norm is not None
        assert max(norms) > 1.05 * descent.clip_norm
    tolerance = 1e-5 if norms else 1e-11
    torch.testing.assert_close(found, read_vector(module), rtol=tolerance, atol=tolerance)


@cache
def by_the_reference(model: Model, descent: Descent) -> tuple[Tensor, Tensor]:
    """Models and velocities after `SHORT`; for a plain descent, without vectors of their own."""
    local = job(model, descent=descent, schedule="linear")
    bursts = steered(SHORT, local, torch.float64)
    return run("reference", local, starts(local, torch.float64), bursts), velocities_of(bursts)


@EVERY
@pytest.mark.parametrize("model", [PERCEPTRON, CNN, RESNET], ids=str)
@pytest.mark.parametrize("engine", FAST)
def test_every_engine_gives_the_updates_of_the_reference(engine: str, model: Model, descent: Descent) -> None:
    local = job(model, descent=descent, schedule="linear")
    initial = starts(local, torch.float64)
    expected, velocities = by_the_reference(model, descent)
    bursts = steered(SHORT, local, torch.float64)
    found = run(engine, local, initial, bursts)
    agree(found, expected, initial)
    torch.testing.assert_close(velocities_of(bursts), velocities, rtol=1e-8, atol=1e-9)
    plain, _ = by_the_reference(model, descent_of(Learning(), LocalRule()))
    assert not torch.equal(found, plain)
    for device, burst in enumerate(SHORT):
        if burst.rounds == 0:
            assert torch.equal(found[device], initial[device])
        elif descent.clip_norm is None and (not descent.corrected or device != 2):
            assert not torch.equal(found[device], plain[device])


@EVERY
def test_stacked_scenes_give_the_updates_of_the_reference(descent: Descent) -> None:
    local = lane_job(LANES, descent=descent, schedule="linear")
    bursts = [Burst(device, 1 + device, rounds) for device, rounds in enumerate([2, 1, 1, 0, 2])]
    initial = lane_starts(local, torch.float64)
    (expected, slow), (found, fast) = (
        (run(name, local, initial, mine), mine)
        for name, mine in ((name, steered(bursts, local, torch.float64)) for name in ("reference", "stacked"))
    )
    agree(found, expected, initial)
    torch.testing.assert_close(velocities_of(fast), velocities_of(slow), rtol=1e-8, atol=1e-9)


def test_a_large_network_with_fewer_multiplications_does_so_too() -> None:
    local = job(Resnet9(width=32), devices=2, batch=4, descent=DESCENTS["everything"])
    initial = starts(local, torch.float64)
    bursts = [Burst(0, 1, 1), Burst(1, 3, 1)]
    expected, found = (
        run(name, local, initial, steered(bursts, local, torch.float64)) for name in ("reference", "stacked")
    )
    agree(found, expected, initial)


@EVERY
def test_the_step_that_a_graph_captures_is_the_step_of_the_reference(
    descent: Descent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batch normalisation of few images makes much of rounding, from the second step on.
    for model, declared in ((PERCEPTRON, descent), (RESNET, replace(descent, steps_per_round=1))):
        local = job(model, descent=declared, schedule="linear")
        initial = starts(local, torch.float32)
        once = [Burst(device, 1 + device, 1) for device in range(local.devices)]
        exact, bursts = (steered(once, local, dtype) for dtype in (torch.float64, torch.float32))
        expected = run("reference", local, initial.double(), exact)
        found = run_in_a_slot(local.training, initial, bursts, monkeypatch)
        assert float((found - expected).norm()) <= 5e-3 * float((expected - initial).norm())
        torch.testing.assert_close(velocities_of(bursts).double(), velocities_of(exact).double(), rtol=5e-2, atol=5e-3)


def test_clipping_scales_long_gradients_down_to_a_length_and_leaves_others() -> None:
    local = job(PERCEPTRON)
    initial = starts(local, torch.float64)
    once = [Burst(device, 1, 1) for device in range(local.devices)]
    updates = run("reference", local, initial, once) - initial
    median = float(updates.norm(dim=1).median()) / 0.1
    clipped = job(PERCEPTRON, descent=Descent(clip_norm=median))
    for engine in CPU_ENGINES:
        found = run(engine, clipped, initial, once) - initial
        expected = updates * (0.1 * median / updates.norm(dim=1, keepdim=True)).clamp(max=1)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@cache
def plain_step(engine: str) -> Tensor:
    local = job(RESNET)
    return run(engine, local, starts(local, torch.float64), [Burst(device, 1, 1) for device in range(9)])


@EVERY
@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_statistics_of_normalisation_take_no_part(engine: str, descent: Descent) -> None:
    once = [Burst(device, 1, 1) for device in range(9)]
    one_step = replace(descent, steps_per_round=1)
    local = job(RESNET, descent=one_step)
    initial = starts(local, torch.float64)
    found = run(engine, local, initial, steered(once, local, torch.float64))
    plain = plain_step(engine)
    assert torch.equal(found[:, RESNET.parameters :], plain[:, RESNET.parameters :])
    assert one_step.is_plain or not torch.equal(found[:, : RESNET.parameters], plain[:, : RESNET.parameters])


@pytest.mark.parametrize("name", ["momentum", "everything"])
@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_a_burst_cut_anywhere_is_the_same_burst(engine: str, name: str) -> None:
    local = job(PERCEPTRON, descent=DESCENTS[name], schedule="linear")
    devices, initial = range(local.devices), starts(local, torch.float64)
    bursts = steered([Burst(device, 1, 8) for device in devices], local, torch.float64)
    again = steered(bursts, local, torch.float64)
    whole = run(engine, local, initial, bursts)
    half = run(engine, local, initial, [replace(burst, rounds=burst.device) for burst in again])
    rest = [replace(burst, first_round=1 + burst.device, rounds=8 - burst.device) for burst in again]
    pieces = run(engine, local, half, rest)
    torch.testing.assert_close(pieces, whole, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(velocities_of(rest), velocities_of(bursts), rtol=1e-11, atol=1e-12)
    if engine == "reference":
        assert torch.equal(pieces, whole)
        assert torch.equal(velocities_of(rest), velocities_of(bursts))


@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_three_steps_a_round_are_the_minibatches_of_three_rounds(engine: str) -> None:
    # More steps than the scenario has rounds.
    three, one = job(PERCEPTRON, rounds=5, descent=DESCENTS["three steps"]), job(PERCEPTRON, rounds=15)
    initial = starts(one, torch.float64)
    found = run(engine, three, initial, [Burst(device, 2, 4) for device in range(9)])
    assert torch.equal(found, run(engine, one, initial, [Burst(device, 4, 12) for device in range(9)]))


def test_the_learning_rate_falls_by_the_round_not_by_the_step() -> None:
    falling = job(PERCEPTRON, rounds=12, schedule="linear", descent=Descent(steps_per_round=2))
    initial = starts(falling, torch.float64)
    found, expected = initial[0].clone(), initial[0].clone()
    make_engine("reference", falling.training).run([found], [Burst(0, 4, 2)])
    for step in (7, 8, 9, 10):
        rate = 0.1 * (1 - (3 if step < 9 else 4) / 12)
        plain = job(PERCEPTRON)
        make_engine("reference", replace(plain.training, learning_rate=rate)).run([expected], [Burst(0, step, 1)])
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)


def test_a_vector_that_is_missing_or_not_declared_is_refused() -> None:
    for descent, vectors, message in (
        (Descent(pull=1.0), {}, "a pull needs the model that each device received"),
        (Descent(momentum=0.5), {}, "momentum needs the velocity of each device"),
        (Descent(), {"correction": torch.zeros(21)}, "a correction needs a descent that declares it"),
        (Descent(corrected=True), {"correction": torch.zeros(1)}, "must have 21 entries, one per parameter"),
        (Descent(momentum=0.5), {"velocity": torch.zeros(22)}, "must have 21 entries, one per parameter"),
    ):
        local = job(Mlp((6, 3)), descent=descent)
        for engine in CPU_ENGINES:
            with pytest.raises(ValueError, match=message):
                run(engine, local, starts(local, torch.float32), [Burst(0, 1, 1, **vectors)])


@pytest.mark.parametrize(
    ("field", "values", "rule"),
    [
        ("pull", (-0.1, math.nan, math.inf), "must be a finite number of at least 0"),
        ("clip_norm", (0.0, -1.0, math.nan, math.inf), "must be a finite number above 0, or None"),
        ("weight_decay", (-0.1, math.nan, math.inf), "must be a finite number of at least 0"),
        ("momentum", (-0.1, 1.0, math.nan), "must be at least 0 and below 1"),
        ("steps_per_round", (0, -1, 1.5), "must be an integer of at least 1"),
    ],
)
def test_values_are_checked_when_a_descent_is_made(field: str, values: tuple[float, ...], rule: str) -> None:
    for value in values:
        with pytest.raises(ScenarioError) as error:
            Descent(**{field: value})  # type: ignore[arg-type]
        assert str(error.value) == f"descent.{field} = {value!r}: {rule}"


def test_a_proximal_term_of_a_scenario_is_a_pull() -> None:
    assert descent_of(Learning(local_loss="prox", prox_strength=0.3), LocalRule()) == Descent(pull=0.3)
    assert descent_of(Learning(local_loss="logit-adjusted"), LocalRule()).is_plain
    assert not Descent(pull=0.3).is_plain
    assert [name for name, descent in DESCENTS.items() if descent.pulls_at_most] == ["pull", "three steps"]


ON_GPU: list[tuple[Model, Precision, str]] = [
    *((model, "fp32", name) for model in (PERCEPTRON, RESNET) for name in DESCENTS),
    *((model, "tf32", "everything") for model in (PERCEPTRON, Resnet9())),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "precision", "name"), ON_GPU, ids=str)
@pytest.mark.parametrize("engine", ["stacked", "vmap", "cuda_graphs"])
def test_a_gpu_takes_the_steps_of_double_precision(engine: str, model: Model, precision: Precision, name: str) -> None:
    descent = replace(DESCENTS[name], steps_per_round=1)
    kinds: tuple[Precision, Precision] = (precision, "fp32")
    local, exact = (
        job(model, descent=descent, schedule="linear", compute=Compute.named("cuda", kind)) for kind in kinds
    )
    initial = starts(local, torch.float32)
    once = [Burst(device, 1 + device, 1) for device in range(local.devices)]

    def error(name: str) -> float:
        found = run(name, local, initial, steered(once, local, torch.float32)).double() - initial
        return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).mean())

    truth = run("reference", exact, initial.double(), steered(once, exact, torch.float64)) - initial
    assert error(engine) <= 2 * error("reference") + 1e-6


@pytest.mark.gpu
@EVERY
def test_a_gpu_stacks_scenes_with_the_updates_of_the_reference(descent: Descent) -> None:
    local = lane_job(LANES, descent=descent, schedule="linear", compute=Compute.named("cuda"))
    bursts = [Burst(device, 1 + device, rounds) for device, rounds in enumerate([2, 1, 1, 0, 2])]
    initial = lane_starts(local, torch.float64)
    expected, found = (
        run(name, local, initial, steered(bursts, local, torch.float64)) for name in ("reference", "stacked")
    )
    agree(found, expected, initial)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["reference", "stacked", "vmap", "cuda_graphs"])
def test_bursts_on_a_gpu_can_be_cut_and_repeat_bit_by_bit(engine: str) -> None:
    local = job(PERCEPTRON, descent=DESCENTS["everything"], compute=Compute.named("cuda"))
    initial = starts(local, torch.float32)
    whole = [Burst(device, 1, 6) for device in range(local.devices)]
    first, second = (run(engine, local, initial, steered(whole, local, torch.float32)) for _ in range(2))
    assert torch.equal(first, second)
    bursts = steered(whole, local, torch.float32)
    half = run(engine, local, initial, [replace(burst, rounds=2) for burst in bursts])
    found = run(engine, local, half, [replace(burst, first_round=3, rounds=4) for burst in bursts])
    assert torch.equal(found, first)
