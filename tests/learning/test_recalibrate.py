"""Recalibrated statistics: what they are, which samples they come from, and where they are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wayfare
from wayfare.engine import Compute
from wayfare.engine.compute import PRECISIONS, Precision
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Residual, Resnet9
from wayfare.learning.recalibrate import Recalibration, draw_samples
from wayfare.learning.tasks import Classification, load_task, own_task
from wayfare.scenario import preset_names
from wayfare.scenario.model import Learning

MODEL = Resnet9(width=4)


def noise_task(images: int = 60) -> Classification:
    """Images whose channels differ in mean and spread."""
    rng = np.random.default_rng(0)
    spread = np.array([0.5, 1.0, 2.0]).reshape(1, 3, 1, 1)
    inputs = torch.from_numpy((spread * rng.standard_normal((images, 3, 32, 32)) + spread).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, images))
    return Classification(
        name="noise",
        model=MODEL,
        classes=10,
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:20],
        test_labels=labels[:20],
    )


def some_model() -> Tensor:
    """Weights as they begin, and statistics that fit nothing."""
    rng = np.random.default_rng(1)
    vector = MODEL.initial(rng)
    vector[MODEL.parameters :] = torch.from_numpy(rng.uniform(-2, 2, MODEL.statistics).astype(np.float32))
    return vector


def by_hand(stages: nn.Module, signal: Tensor, found: list[Tensor]) -> Tensor:
    """Pass a signal layer by layer in double precision, with the moments of all its values for each channel."""
    for stage in stages.children():
        if isinstance(stage, Residual):
            signal = signal + by_hand(stage.inner, signal, found)
        elif isinstance(stage, nn.BatchNorm2d):
            values = signal.numpy().transpose(1, 0, 2, 3).reshape(signal.shape[1], -1)
            mean, variance = (torch.from_numpy(each) for each in (values.mean(axis=1), values.var(axis=1, ddof=1)))
            found += [mean, variance]
            signal = (signal - mean.view(1, -1, 1, 1)) / (variance.view(1, -1, 1, 1) + stage.eps).sqrt()
        else:
            signal = stage(signal)
    return signal


def test_statistics_equal_the_moments_of_every_layer_by_brute_force() -> None:
    task, samples, vector = noise_task(), torch.arange(5, 45), some_model()
    found = Recalibration(task, samples)(vector)
    module = MODEL.module().double()
    nn.utils.vector_to_parameters(vector[: MODEL.parameters].double(), module.parameters())
    expected: list[Tensor] = []
    with torch.no_grad():
        logits = by_hand(module, task.train_inputs[samples].double(), expected)
    assert torch.equal(found[: MODEL.parameters], vector[: MODEL.parameters])
    torch.testing.assert_close(found[MODEL.parameters :].double(), torch.cat(expected), rtol=1e-4, atol=1e-5)
    # A model that is loaded from the vector gives what was computed by hand.
    judged = replace(task, test_inputs=task.train_inputs[samples], test_labels=task.train_labels[samples])
    loss = nn.functional.cross_entropy(logits, judged.test_labels)
    assert Evaluator(judged)(found).loss == pytest.approx(float(loss), rel=1e-5)


def one_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))


def test_the_variance_between_devices_is_missing_in_an_average_and_comes_back() -> None:
    rng = np.random.default_rng(0)
    # Two devices with 500 samples each: variance 1 about -3 and about 3, so 1 + 9 for both together.
    inputs = np.concatenate([rng.normal(-3, 1, (500, 1)), rng.normal(3, 1, (500, 1))]).astype(np.float32)
    data = inputs, np.repeat([0, 1], 500)
    task = own_task("two", train=data, test=data, network=one_norm)
    initial = task.model.initial(rng)
    local = [Recalibration(task, samples)(initial) for samples in torch.arange(1000).split(500)]
    averaged = (local[0] + local[1]) / 2
    found = Recalibration(task, torch.arange(1000))(averaged)
    place = task.model.parameters
    assert float(averaged[place + 1]) == pytest.approx(1, rel=0.1)
    between = np.var([float(vector[place]) for vector in local])
    assert float(found[place]) == pytest.approx(float(averaged[place]), abs=1e-6)
    assert float(found[place + 1]) == pytest.approx(float(averaged[place + 1]) + between, rel=2e-3)
    assert float(found[place + 1]) == pytest.approx(10, rel=0.05)


def test_labels_and_test_data_do_not_matter() -> None:
    task, samples, vector = noise_task(), torch.arange(40), some_model()
    blind = replace(
        task,
        train_labels=task.train_labels.flip(0),
        test_inputs=torch.full_like(task.test_inputs, torch.nan),
        test_labels=torch.full_like(task.test_labels, -1),
    )
    found = Recalibration(task, samples)(vector)
    assert found.isfinite().all()
    assert torch.equal(Recalibration(blind, samples)(vector), found)


def test_samples_that_were_not_drawn_do_not_matter() -> None:
    task, vector = noise_task(), some_model()
    samples = torch.from_numpy(draw_samples(30, [np.arange(50)], seed=0))
    others = torch.ones(60, dtype=torch.bool).index_fill(0, samples, False)
    poisoned = replace(task, train_inputs=task.train_inputs.masked_fill(others.view(-1, 1, 1, 1), torch.nan))
    assert torch.equal(Recalibration(poisoned, samples)(vector), Recalibration(task, samples)(vector))


def test_samples_are_different_ones_that_the_fleet_holds() -> None:
    held = [np.array([3, 5, 9, 11]), np.array([9, 12, 40]), np.array([5])]
    drawn = draw_samples(6, held, seed=0)
    assert sorted(drawn) == [3, 5, 9, 11, 12, 40]
    assert np.array_equal(draw_samples(4, held, seed=0), drawn[:4])
    assert len({tuple(draw_samples(6, held, seed=seed)) for seed in range(5)}) > 1
    with pytest.raises(ScenarioError, match=r"recalibrate_statistics = 7: must not exceed the 6 training samples that"):
        draw_samples(7, held, seed=0)


def with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8, momentum=0.5), nn.Dropout(), nn.Linear(8, 3), nn.BatchNorm1d(3)
    )


def test_networks_of_ones_own_repeat_and_draw_nothing() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(2, 3, (80, 5)).astype(np.float32), rng.integers(0, 3, 80)
    task = own_task("own", train=data, test=data, network=with_dropout)
    vector, recalibrate = task.model.initial(rng), Recalibration(task, torch.arange(70))
    before = torch.random.get_rng_state()
    found = recalibrate(vector)
    recalibrate(found * 2)
    assert torch.equal(recalibrate(vector), found)
    assert torch.equal(torch.random.get_rng_state(), before)
    # Dropout is off: the second normalisation sees the normalised signal of the first one whole.
    first = data[0].astype(np.float64) @ vector[:40].view(8, 5).double().numpy().T
    normalised = (first - first[:70].mean(axis=0)) / np.sqrt(first[:70].var(axis=0, ddof=1) + 1e-5)
    place = 40 + 8 + 16
    second = normalised[:70] @ vector[place : place + 24].view(3, 8).double().numpy().T
    np.testing.assert_allclose(found[-3:].numpy(), second.var(axis=0, ddof=1), rtol=1e-4)


def test_moments_of_a_short_signal_are_not_short() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Recalibration(noise_task(), torch.arange(40))(some_model())
    statistics = found[MODEL.parameters :]
    assert found.dtype == torch.float32
    assert not torch.isclose(statistics, statistics.bfloat16().float(), rtol=1e-6, atol=0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_repeats_and_agrees_with_a_cpu(precision: Precision) -> None:
    compute = Compute.named("cuda", precision)
    task, samples, vector = noise_task(), torch.arange(40), some_model()
    expected = Recalibration(task, samples)(vector)
    with compute.numerics():
        recalibrate = Recalibration(task.to(compute.device), samples.to(compute.device))
        found, again = (recalibrate(vector.to(compute.device)) for _ in range(2))
    assert torch.equal(found, again)
    rtol = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}[precision]
    torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=rtol)


class Shared(nn.Module):
    """Normalises twice with the same layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.norm(self.norm(inputs) ** 2))  # type: ignore[no-any-return]


class Buffered(nn.Linear):
    """Has a floating buffer that is no statistic of batch normalisation."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("scale", torch.ones(2))


def test_networks_without_statistics_are_refused() -> None:
    data = np.zeros((6, 4), dtype=np.float32), np.array([0, 1] * 3)
    buffered = own_task("buffered", train=data, test=data, network=Buffered)
    group = replace(noise_task(), model=Resnet9(normalisation="group", width=4))
    mlp = replace(noise_task(), model=Mlp((4, 2)))
    for task in (buffered, group, mlp):
        rule = (
            f"learning.recalibrate_statistics = 6: needs batch normalisation, but the network of {task.name} has none"
        )
        with pytest.raises(ScenarioError, match=rule):
            Recalibration(task, torch.arange(6))
    shared = own_task("shared", train=data, test=data, network=Shared)
    with pytest.raises(ScenarioError, match="uses a batch normalisation layer twice"):
        Recalibration(shared, torch.arange(6))(shared.model.initial(np.random.default_rng(0)))


@pytest.mark.parametrize(
    "learning",
    [
        Learning(recalibrate_statistics=500),
        Learning(task="cifar10", network="cnn", recalibrate_statistics=500),
        Learning(task="cifar10", normalisation="group", recalibrate_statistics=500),
        Learning(task="argoverse", recalibrate_statistics=500),
    ],
    ids=lambda learning: learning.task,
)
def test_scenarios_without_statistics_are_refused_before_data_are_read(learning: Learning) -> None:
    with pytest.raises(ScenarioError, match="recalibrate_statistics = 500: needs batch normalisation, but this"):
        load_task(learning)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("-1", "input should be greater than or equal to 0"),
        ("1", r"must be 0 \(off\) or at least 2: one sample has no variance"),
        ("true", "input should be a valid integer"),
        ("500.5", "input should be a valid integer"),
    ],
)
def test_a_wrong_number_is_named_with_its_rule(value: str, rule: str) -> None:
    with pytest.raises(InputError, match=rf"learning.recalibrate_statistics = {value.title()}: {rule}"):
        wayfare.load("fashion-small", [f"learning.recalibrate_statistics={value}"])


@pytest.mark.parametrize("preset", preset_names())
def test_it_is_off_in_every_preset(preset: str) -> None:
    assert wayfare.load(preset).learning.recalibrate_statistics == 0
