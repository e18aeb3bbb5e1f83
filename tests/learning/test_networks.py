"""The user's networks: which of their values are sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, job, run, starts
from torch import Tensor, nn

import wayfare
from wayfare.engine import Burst
from wayfare.errors import InputError
from wayfare.learning.batches import Batches
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import own_task
from wayfare.learning.tasks.own import OwnTask

WORDS, LENGTH = 7, 5
TEXT = np.random.default_rng(0).integers(0, WORDS, (60, LENGTH))
INPUTS = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
CLASSES = np.arange(60) % 3


class Attention(nn.Module):
    """A small transformer with a causal mask as a buffer, as they usually have it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.last = nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))

    def forward(self, text: Tensor) -> Tensor:
        return self.last(self.block(self.words(text), src_mask=self.mask)[:, -1])  # type: ignore[no-any-return]


class Features(nn.Module):
    """Frozen random features, a trained layer, and a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 6).requires_grad_(False)
        self.register_buffer("angles", torch.rand(6))
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.norm(torch.cos(self.frozen(inputs) + self.angles)))  # type: ignore[no-any-return]


class FromNumpy(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("scale", torch.from_numpy(np.random.default_rng().random(3)).float())


class Late(nn.Linear):
    """Changes its buffer from the fourth pass on."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.passes = itertools.count(1)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        if next(self.passes) > 3 and self.training:
            self.mean.add_(inputs.mean(dim=0).detach())
        return super().forward(inputs - self.mean)


class Warming(nn.Linear):
    """Counts its passes in an attribute, which a new copy of the network does not know."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(inputs) * (1 if self.passes > 3 else 0.1)


class Counting(nn.Linear):
    passes: Tensor

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(inputs) / self.passes


class Caching(nn.Linear):
    """Remembers a size that it has seen, which changes no result."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.longest, self.limit = 0, float("nan")

    def forward(self, inputs: Tensor) -> Tensor:
        self.longest = max(self.longest, inputs.shape[1])
        return super().forward(inputs)


@dataclass
class Outputs:
    logits: Tensor


class Returning(nn.Linear):
    """Returns something else than its outputs."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__(4, 3)
        self.change = change

    def forward(self, inputs: Tensor) -> Any:
        return self.change(super().forward(inputs))


def averaging() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))


def all_frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


def task_of(network: object, inputs: np.ndarray = INPUTS) -> OwnTask:
    data = inputs, CLASSES
    return own_task("own", train=data, test=data, network=network)  # type: ignore[arg-type]


def job_of(task: OwnTask) -> Job:
    batches = Batches([np.arange(60)] * 3, 8, 40, seed=0)
    return Job(replace(job(Mlp((4, 3)), devices=3).training, task=task, batches=batches), 3)


def test_constant_buffers_are_no_part_of_the_vector(tmp_path: Path) -> None:
    task = task_of(Attention, TEXT)
    assert task.model.statistics == 0
    assert task.model.parameters == sum(entry.numel() for entry in Attention().parameters())
    assert bool(torch.isfinite(task.model.initial(np.random.default_rng(0))).all())
    small = ["rounds=10", "fleet.devices=2", "learning.batch_size=4", "mobility.width_m=150", "mobility.height_m=150"]
    record = wayfare.run(wayfare.load(overrides=small), "optimal", task=task, out=tmp_path)
    assert np.isfinite(record.evaluations["loss"]).all()


def test_frozen_parameters_neither_travel_nor_move() -> None:
    task = task_of(Features)
    assert (task.model.parameters, task.model.statistics) == (2 * 6 + 6 * 3 + 3, 2 * 6)
    local = job_of(task)
    initial = starts(local, torch.float64)
    bursts = [Burst(device, 1, 6) for device in range(3)]
    expected, found = (run(engine, local, initial, bursts) for engine in ("reference", "vmap"))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert float((expected - initial).norm()) > 0.01


def test_what_does_not_travel_is_the_same_in_every_copy_of_a_network() -> None:
    task = task_of(Features)
    torch.manual_seed(5)
    one, other = task.model.module(), task.model.module()
    assert torch.equal(one.get_parameter("frozen.weight"), other.get_parameter("frozen.weight"))
    assert torch.equal(one.get_buffer("angles"), other.get_buffer("angles"))
    vector = task.model.initial(np.random.default_rng(0))
    assert Evaluator(task)(vector) == Evaluator(task_of(Features))(vector)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (FromNumpy, "own: scale is not trained and differs each time the network is built"),
        (all_frozen, "own: no parameter of the network has requires_grad=True"),
        (Warming, "own: training changes the attribute passes of the network"),
        (Counting, "own: training changes the buffer passes of type int64"),
        (averaging, r"own: momentum = None of 1 \(BatchNorm1d\): must be a number"),
        (lambda: nn.Linear(4, 3).double(), "own: the parameter weight has type float64; Wayfare trains in float32"),
        (lambda: nn.LazyLinear(3), "own: the shape of the parameter weight is not known"),
        (lambda: Returning(Outputs), "own: the network returns Outputs; it must return a tensor"),
        (lambda: Returning(lambda out: (out, None)), "own: the network returns NoneType"),
        (lambda: Returning(lambda out: (out, out.mean())), r"returns a tensor of shape \(\) for 2 samples"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused(network: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of(network)


def test_a_network_may_remember_what_changes_no_result() -> None:
    assert task_of(Caching).model.parameters == 15


def test_a_compiled_network_is_trained_without_its_compiler() -> None:
    task = task_of(lambda: torch.compile(nn.Linear(4, 3), backend="eager"))
    assert type(task.model.module()) is nn.Linear


def test_a_constant_that_changes_later_is_noticed() -> None:
    local = job_of(task_of(Late))
    with pytest.raises(InputError, match="training changed the buffer mean of the network"):
        run("reference", local, starts(local, torch.float32), [Burst(device, 1, 4) for device in range(3)])
