from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, job, run, starts
from torch import Tensor, nn
from torch.nn import functional

import wayfare
from wayfare.engine import Burst
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.batches import Batches
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import own_task
from wayfare.learning.tasks.own import OwnTask

DEVICES = 3
HELD = [np.arange(0, 60, 3), np.arange(60), np.arange(30)]


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(self.layer(inputs), 0.3, self.training)


class NumpyNoise(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.from_numpy(np.random.normal(size=inputs.shape)).to(inputs)  # noqa: NPY002


class FreshNoise(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.from_numpy(np.random.default_rng().normal(size=inputs.shape)).to(inputs)


class OwnNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator().manual_seed(3)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (torch.rand((), generator=self.source) > 0.01)


def noisy(layer: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), layer())


def random_task(network: object) -> OwnTask:
    data = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32), np.arange(60) % 3
    return own_task("own", train=data, test=data, network=network)  # type: ignore[arg-type]


def random_job(network: object = with_dropout, seed: int = 0) -> Job:
    local = job(Mlp((4, 3)), devices=DEVICES)
    batches = Batches(HELD, 8, 40, seed=seed)
    return Job(replace(local.training, task=random_task(network), batches=batches), DEVICES)


def bursts(first: int, rounds: int) -> list[Burst]:
    return [Burst(device, first, rounds) for device in range(DEVICES)]


@pytest.mark.parametrize("network", [with_dropout, Functional])
def test_random_layers_depend_on_seed_device_and_round_alone(network: object) -> None:
    local = random_job(network)
    initial = starts(local, torch.float32)
    torch.manual_seed(1)
    whole = run("reference", local, initial, bursts(1, 12))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert torch.equal(run("reference", local, initial.flip(0), bursts(1, 12)[::-1]).flip(0), whole)
    pieces = run("reference", local, run("reference", local, initial, bursts(1, 5)), bursts(6, 7))
    assert torch.equal(pieces, whole)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_random_layers_differ_from_device_to_device_and_from_round_to_round() -> None:
    drawn = Batches(HELD, 8, 300, seed=0)
    assert len({seed for device in range(DEVICES) for seed in drawn.seeds_of(device, 1, 300)}) == 3 * 300
    assert drawn.seeds_of(1, 7, 2) == Batches(HELD, 8, 20, seed=0).seeds_of(1, 7, 2)
    assert drawn.seeds_of(1, 7, 2) != Batches(HELD, 8, 300, seed=1).seeds_of(1, 7, 2)


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize(
    ("network", "layer"), [(with_dropout, r"2 \(Dropout\)"), (Functional, r"the network \(Functional\)")]
)
def test_engines_that_cannot_key_random_layers_refuse_them_by_name(engine: str, network: object, layer: str) -> None:
    local = random_job(network)
    rule = rf"engine = '{engine}': {layer} of own draws random numbers, which this engine.*use reference"
    with pytest.raises(ScenarioError, match=rule):
        run(engine, local, starts(local, torch.float32), bursts(1, 1))


@pytest.mark.parametrize("engine", ["reference", "vmap", "auto"])
@pytest.mark.parametrize("layer", [NumpyNoise, FreshNoise, OwnNoise])
def test_layers_that_draw_from_elsewhere_are_refused_by_name(layer: type[nn.Module], engine: str) -> None:
    local = random_job(lambda: noisy(layer))
    numpy_state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr] # noqa: NPY002
    with pytest.raises(InputError, match=rf"own: 1 \({layer.__name__}\) draws random numbers without PyTorch"):
        run(engine, local, starts(local, torch.float32), bursts(1, 1))
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index] # noqa: NPY002


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets) * float(np.random.default_rng().random())


def test_a_loss_that_draws_from_elsewhere_is_refused() -> None:
    local = random_job()
    task = replace(random_task(with_dropout), loss_of=noisy_loss)
    local = Job(replace(local.training, task=task), DEVICES)
    with pytest.raises(InputError, match="own: the network or its loss draws random numbers without PyTorch"):
        run("reference", local, starts(local, torch.float32), bursts(1, 1))


class AlwaysRandom(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(super().forward(inputs), 0.5, training=True)


def test_a_network_that_draws_when_judged_has_one_score() -> None:
    task = random_task(lambda: AlwaysRandom(4, 3))
    model, evaluate = task.model.initial(np.random.default_rng(0)), Evaluator(task)
    before = torch.random.get_rng_state()
    assert evaluate(model) == evaluate(model)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_with_dropout_repeats_and_depends_on_its_seed(tmp_path: Path) -> None:
    small = ["rounds=20", "fleet.devices=3", "learning.batch_size=4", "mobility.width_m=200", "mobility.height_m=200"]
    scenario = wayfare.load(overrides=small)
    losses = []
    for number, (seed, global_seed) in enumerate([(0, 1), (0, 2), (1, 1)]):
        torch.manual_seed(global_seed)
        record = wayfare.run(scenario, "optimal", seed=seed, task=random_task(with_dropout), out=tmp_path / str(number))
        losses.append(record.evaluations["loss"].tolist())
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
