"""Bursts of local steps: one interface and equal results for all engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.engine.compute import Compute
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Task

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Burst:
    """The local training of one device over consecutive rounds without a contact.

    Only vectors that the `Descent` uses are needed. They have the length of the model or of its parameters.
    """

    device: int
    first_round: int
    rounds: int
    # The global model that the device received: the anchor of a pull.
    received: Tensor | None = field(default=None, compare=False, repr=False)
    # Added to every gradient; None adds nothing.
    correction: Tensor | None = field(default=None, compare=False, repr=False)
    # The velocity of momentum, advanced in place like the model, so that a burst can be cut anywhere.
    velocity: Tensor | None = field(default=None, compare=False, repr=False)
    # Whether the vector to advance is empty and the burst starts from ``received``. Only for an `Idling` engine.
    is_empty: bool = field(default=False, compare=False)
    # Whether the device may have statistics to deliver before it trains.
    waits: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """The settings of local steps that all devices share."""

    task: Task
    batches: Batches
    learning_rate: float
    compute: Compute = field(default_factory=Compute)
    schedule: Schedule = field(default_factory=Schedule)
    local_loss: LocalLoss = field(default_factory=LocalLoss)
    descent: Descent = field(default_factory=Descent)


@dataclass(frozen=True, slots=True)
class Minibatches:
    samples: Tensor  # (steps, batch)
    crops: Tensor | None  # (steps, batch, 3): the augmentation of each sample, if any
    shares: Tensor | None  # (steps,): factors of the learning rate, unless constant
    offset: Tensor | None  # (classes,): added to the logits of this device, if any


# A stack pays for its copies from about this many steps, unless an engine sets another number.
AHEAD_STEPS = 12


class Engine(ABC):
    """Runs bursts: the steps of every round, each on its own minibatch, as declared by a `Descent`."""

    # How many steps the trainer advances devices that have no contact yet. With 1, an overlapping engine gets the next
    # step of all devices before the contacts of every round, to have work meanwhile.
    ahead_steps: int = AHEAD_STEPS

    @abstractmethod
    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance the flat vector ``models[i]`` in place by ``bursts[i]``. No device appears twice."""

    def evaluated(self) -> nn.Module | None:
        """A faster module with the parameters and outputs of the task's network, to evaluate models with, if any."""
        return None


class Ready(Protocol):
    """The end of a burst, such as an event of a GPU."""

    def wait(self) -> None:
        """Make later work of the current stream wait for the burst. The host does not wait."""

    def query(self) -> bool:
        """Whether the burst has ended, so that nothing would wait for it."""


class Overlapping(Engine):
    """An engine whose bursts may still run when a call returns, while the host handles contacts."""

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        for end in self.launch(models, bursts, [None] * len(bursts)):
            end.wait()

    @abstractmethod
    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        """Start bursts, the most urgent first. Burst i starts after ``after[i]``, an earlier burst of its device.

        If ``stays`` is given and ``stays[i]``, the device most likely trains on before anything reads its model. The
        engine then need not write ``models[i]`` before someone waits for the end of the burst.
        """


class Idling(Overlapping):
    """An overlapping engine that knows when it needs more bursts."""

    @abstractmethod
    def has_little_left(self) -> bool:
        """Whether all that was launched has ended or is about to end. It must not wait."""


def minibatches(training: LocalTraining, burst: Burst, *, pinned: bool = False) -> Minibatches:
    """The minibatches of a burst, on the compute device, or ``pinned`` where a GPU can copy them without the host."""
    first, steps = step_range(training, burst)
    samples = training.batches.of(burst.device, first, steps)
    crops = training.batches.crops_of(burst.device, first, steps)
    shares = None if training.schedule.is_constant else _shares(training, burst)
    if shares is not None and pinned:
        # Such a copy cannot convert numbers, and a GPU needs single precision.
        shares = shares.float()
    offsets = training.local_loss.offsets

    def placed(values: Tensor) -> Tensor:
        return _pinned(values, training.compute.device) if pinned else moved(values, training.compute.device)

    return Minibatches(
        placed(torch.from_numpy(samples)),
        None if crops is None else placed(torch.from_numpy(crops)),
        None if shares is None else placed(shares),
        None if offsets is None else offsets[burst.device],
    )


def seeds(training: LocalTraining, burst: Burst) -> list[int]:
    return training.batches.seeds_of(burst.device, *step_range(training, burst))


def moved(values: Tensor, where: torch.device) -> Tensor:
    """Move values to the compute device.

    A GPU copies from pinned memory asynchronously, and PyTorch does not reuse that memory before it has been read. From
    other memory the CPU would wait for all earlier work of the GPU.
    """
    return _pinned(values, where).to(where, non_blocking=True)


def _pinned(values: Tensor, where: torch.device) -> Tensor:
    return values.pin_memory() if where.type == "cuda" else values


def step_range(training: LocalTraining, burst: Burst) -> tuple[int, int]:
    """The number of a burst's first step, counted from 1, and its number of steps."""
    in_round = training.descent.steps_per_round
    return (burst.first_round - 1) * in_round + 1, burst.rounds * in_round


def _shares(training: LocalTraining, burst: Burst) -> Tensor:
    """Factors of the learning rate for every step of a burst, equal within a round."""
    shares = training.schedule.shares(burst.first_round, burst.rounds)
    return torch.from_numpy(np.repeat(shares, training.descent.steps_per_round))


@dataclass(frozen=True, slots=True)
class Step:
    """The minibatches of one step of the active bursts of a stack."""

    samples: Tensor  # (active, batch)
    crops: Tensor | None  # (active, batch, 3)
    shares: Tensor | None  # (active,): factors of the learning rate
    offsets: Tensor | None  # (active, classes): added to the logits


def stacked_steps(training: LocalTraining, bursts: Sequence[Burst], where: torch.device | None = None) -> list[Step]:
    """The steps of bursts sorted by falling length. Bursts leave when they end, so there is no padding.

    They are on the compute device unless ``where`` says otherwise.
    """
    where = where or training.compute.device
    tables = [training.batches.of(burst.device, *step_range(training, burst)) for burst in bursts]
    moves = [training.batches.crops_of(burst.device, *step_range(training, burst)) for burst in bursts]
    rates = [] if training.schedule.is_constant else [_shares(training, burst) for burst in bursts]
    offsets = training.local_loss.offsets
    if offsets is not None:
        offsets = offsets[[burst.device for burst in bursts]]
    steps, active = [], len(bursts)
    for step in range(len(tables[0])):
        while len(tables[active - 1]) <= step:
            active -= 1
        chosen = [move[step] for move in moves[:active] if move is not None]
        steps.append(
            Step(
                samples=moved(torch.from_numpy(np.stack([table[step] for table in tables[:active]])), where),
                crops=moved(torch.from_numpy(np.stack(chosen)), where) if chosen else None,
                shares=moved(torch.stack([rate[step] for rate in rates[:active]]), where) if rates else None,
                offsets=None if offsets is None else offsets[:active],
            )
        )
    return steps


@dataclass(frozen=True, slots=True)
class Steering:
    """The vectors that turn gradients into directions; None if the descent does not use them.

    Each list holds one flat vector per device, or an engine's stacks of them.
    """

    received: Tensors | None
    correction: Tensors | None
    velocity: Tensors | None

    def each(self, change: Callable[[Tensors], Tensors]) -> Steering:
        lists = self.received, self.correction, self.velocity
        return Steering(*(None if tensors is None else change(tensors) for tensors in lists))

    def pairs_with(self, other: Steering) -> list[tuple[Tensors, Tensors]]:
        mine = self.received, self.correction, self.velocity
        others = other.received, other.correction, other.velocity
        return [(one, two) for one, two in zip(mine, others, strict=True) if one is not None and two is not None]


def steering_of(training: LocalTraining, bursts: Sequence[Burst]) -> Steering:
    """The vectors of bursts, cut to the parameters. A missing, unused or too short vector raises ValueError."""
    descent, model = training.descent, training.task.model
    if not descent.corrected and any(burst.correction is not None for burst in bursts):
        raise ValueError("a correction needs a descent that declares it")

    def cut(vectors: Sequence[Tensor | None], missing: str) -> list[Tensor]:
        found = [vector for vector in vectors if vector is not None]
        if len(found) < len(vectors):
            raise ValueError(missing)
        if any(len(vector) not in (model.parameters, model.parameters + model.statistics) for vector in found):
            raise ValueError(f"a vector of a burst must have {model.parameters} entries, one per parameter")
        return [vector[: model.parameters] for vector in found]

    received = correction = velocity = None
    if descent.pull:
        received = cut([burst.received for burst in bursts], "a pull needs the model that each device received")
    if descent.corrected:
        none = torch.zeros((), device=training.compute.device).expand(model.parameters)
        correction = cut([none if burst.correction is None else burst.correction for burst in bursts], "")
    if descent.momentum:
        velocity = cut([burst.velocity for burst in bursts], "momentum needs the velocity of each device")
    return Steering(received, correction, velocity)


Views: TypeAlias = Callable[[Tensor], Tensors]
"""Splits flat vectors (devices, parameters) into views with the shapes and order of an engine's weights."""


def split(block: Tensor, shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    """The tensors of flat vectors (devices, entries), as views (devices, *shape)."""
    shapes = list(shapes)
    pieces = block.split_with_sizes([math.prod(shape) for shape in shapes], dim=1)
    return [piece.view(len(block), *shape) for piece, shape in zip(pieces, shapes, strict=True)]


@contextmanager
def steered(training: LocalTraining, bursts: Sequence[Burst], weights: Tensors, views: Views) -> Iterator[Steering]:
    """Copy the bursts' vectors into stacks; at the end copy the velocity back.

    Stacks have the memory layout of the weights, which is fastest in PyTorch.
    """

    def stacked(flat: Tensors) -> Tensors:
        block = weights[0].new_empty(len(flat), len(flat[0]))
        torch._foreach_copy_(list(block.unbind()), list(flat))
        copies = [torch.empty_like(weight) for weight in weights]
        torch._foreach_copy_(copies, list(views(block)))
        return copies

    vectors = steering_of(training, bursts)
    stacks = vectors.each(stacked)
    yield stacks
    if vectors.velocity is not None and stacks.velocity is not None:
        block = stacks.velocity[0].new_empty(len(vectors.velocity), len(vectors.velocity[0]))
        torch._foreach_copy_(list(views(block)), list(stacks.velocity))
        torch._foreach_copy_(list(vectors.velocity), list(block.unbind()))


@torch.no_grad()
def descend(
    weights: Tensors, gradients: Tensors, steering: Steering, training: LocalTraining, shares: Tensor | None
) -> None:
    """Update the weights of the active devices, the first of their stack: w <- w - eta s_r v."""
    active = steering.each(lambda stacks: [stack[: len(weights[0])] for stack in stacks])
    directions = directed(gradients, weights, active, training.descent)
    torch._foreach_add_(weights, _scaled(directions, shares), alpha=-training.learning_rate)


def gradients_of(loss: Tensor, weights: Sequence[Tensor]) -> Tensors:
    """The gradients of a loss: 0 for weights that it does not use, and dense even if a table has sparse ones."""
    found = torch.autograd.grad(loss, list(weights), materialize_grads=True)
    return [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]


def _norms(vectors: Tensors) -> Tensor:
    """The Euclidean norm of each device's entries. Devices are the first axis."""
    norms = torch.stack([torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in vectors])
    found: Tensor = torch.linalg.vector_norm(norms, dim=0)
    return found


def directed(
    gradients: Tensors,
    weights: Tensors,
    steering: Steering,
    descent: Descent,
    norms: Callable[[Tensors], Tensor] = _norms,
) -> Tensors:
    """The direction v of a step, as defined by `Descent`. Advances the velocity. Devices are the first axis."""
    if steering.received is not None:
        away = torch._foreach_sub(weights, steering.received)
        gradients = torch._foreach_add(gradients, away, alpha=descent.pull)
    if steering.correction is not None:
        gradients = torch._foreach_add(gradients, steering.correction)
    if descent.clip_norm is not None:
        gradients = _scaled(gradients, (descent.clip_norm / norms(gradients)).clamp(max=1))
    if descent.weight_decay:
        gradients = torch._foreach_add(gradients, weights, alpha=descent.weight_decay)
    if steering.velocity is None:
        return gradients
    torch._foreach_mul_(steering.velocity, descent.momentum)
    torch._foreach_add_(steering.velocity, gradients)
    return steering.velocity


def _scaled(gradients: Tensors, shares: Tensor | None) -> Tensors:
    if shares is None:
        return gradients
    return [gradient * shares.to(gradient).view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def longest_first(bursts: Sequence[Burst]) -> list[int]:
    """Indices of non-empty bursts, the longest first, so that the bursts of a group end at about the same time."""
    indices = [index for index, burst in enumerate(bursts) if burst.rounds]
    return sorted(indices, key=lambda index: (-bursts[index].rounds, bursts[index].device))


class Stack(Engine):
    """An engine in which the devices of a group step together. Bursts leave their group when they end."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        with self._training.compute.numerics():
            for group in self._groups(models, bursts):
                self._run_group([models[index] for index in group], [bursts[index] for index in group])

    def _groups(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> list[list[int]]:
        """The indices of bursts that step together, the longest first."""
        indices = longest_first(bursts)
        width = self._width(models[0]) if indices else 1
        return [indices[first : first + width] for first in range(0, len(indices), width)]

    @abstractmethod
    def _width(self, model: Tensor) -> int:
        """The number of devices per group for this size of model."""

    @abstractmethod
    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Copy in, step, copy out, without padding."""
