"""Bursts of local steps: one interface, equal results, whatever runs them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.compute import Compute
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Task

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Burst:
    """The local training of one device over some rounds, without a contact between them.

    Only the vectors that the `Descent` uses are needed. They have the length of the model or of its parameters.
    """

    device: int
    first_round: int
    rounds: int
    # The global model that the device received: the anchor of a pull.
    received: Tensor | None = field(default=None, compare=False, repr=False)
    # Added to every gradient; None adds nothing.
    correction: Tensor | None = field(default=None, compare=False, repr=False)
    # The velocity of momentum, advanced in place like the model: a burst can be cut anywhere.
    velocity: Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """What every device's local steps have in common."""

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
    crops: Tensor | None  # (steps, batch, 3): how each sample is augmented, if it is
    shares: Tensor | None  # (steps,): of the learning rate, if it changes
    offset: Tensor | None  # (classes,): added to the logits of this device, if something is


class Engine(Protocol):
    """Runs bursts: the steps of every round, each on its own minibatch, as a `Descent` declares them.

    One that has ``ahead_steps`` says how far the trainer is to take devices along that nobody has met yet.
    """

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance ``models[i]``, a flat vector, in place by ``bursts[i]``; no device appears twice."""


def minibatches(training: LocalTraining, burst: Burst) -> Minibatches:
    """The minibatches of a burst, on the device that computes."""
    where = training.compute.device
    first, steps = _steps(training, burst)
    samples = training.batches.of(burst.device, first, steps)
    crops = training.batches.crops_of(burst.device, first, steps)
    offsets = training.local_loss.offsets
    return Minibatches(
        moved(torch.from_numpy(samples), where),
        None if crops is None else moved(torch.from_numpy(crops), where),
        None if training.schedule.is_constant else moved(_shares(training, burst), where),
        None if offsets is None else offsets[burst.device],
    )


def seeds(training: LocalTraining, burst: Burst) -> list[int]:
    return training.batches.seeds_of(burst.device, *_steps(training, burst))


def moved(values: Tensor, where: torch.device) -> Tensor:
    """Values where they are computed with.

    From pinned memory, which PyTorch does not use again before it has been read, a GPU takes them when it gets there;
    from any other the processor would wait until the GPU has done all that was asked of it before.
    """
    return values.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else values.to(where)


def _steps(training: LocalTraining, burst: Burst) -> tuple[int, int]:
    """The number of a burst's first step, counted from 1, and how many it takes."""
    in_round = training.descent.steps_per_round
    return (burst.first_round - 1) * in_round + 1, burst.rounds * in_round


def _shares(training: LocalTraining, burst: Burst) -> Tensor:
    """Shares of the learning rate for every step of a burst; all steps of a round have the same."""
    shares = training.schedule.shares(burst.first_round, burst.rounds)
    return torch.from_numpy(np.repeat(shares, training.descent.steps_per_round))


@dataclass(frozen=True, slots=True)
class Step:
    """What the bursts of a stack that are under way take one step on, each with its own minibatch."""

    samples: Tensor  # (active, batch)
    crops: Tensor | None  # (active, batch, 3)
    shares: Tensor | None  # (active,): of the learning rate
    offsets: Tensor | None  # (active, classes): added to the logits


def stacked_steps(training: LocalTraining, bursts: Sequence[Burst], where: torch.device | None = None) -> list[Step]:
    """The steps of bursts that are sorted by falling length: bursts that end leave, so nothing is padding.

    They lie on the device that computes unless told otherwise.
    """
    where = where or training.compute.device
    tables = [training.batches.of(burst.device, *_steps(training, burst)) for burst in bursts]
    moves = [training.batches.crops_of(burst.device, *_steps(training, burst)) for burst in bursts]
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
    """The vectors that turn gradients into directions; None where the descent uses none.

    Each list holds one flat vector for each device, or the stacks that an engine makes of them.
    """

    received: Tensors | None
    correction: Tensors | None
    velocity: Tensors | None

    def each(self, change: Callable[[Tensors], Tensors]) -> Steering:
        lists = self.received, self.correction, self.velocity
        return Steering(*(None if tensors is None else change(tensors) for tensors in lists))

    def beside(self, other: Steering) -> list[tuple[Tensors, Tensors]]:
        mine = self.received, self.correction, self.velocity
        others = other.received, other.correction, other.velocity
        return [(one, two) for one, two in zip(mine, others, strict=True) if one is not None and two is not None]


def steering_of(training: LocalTraining, bursts: Sequence[Burst]) -> Steering:
    """The vectors of some bursts, cut to the parameters; ValueError if one is missing, unused or of another length."""
    descent, model = training.descent, training.task.model
    if not descent.corrected and any(burst.correction is not None for burst in bursts):
        raise ValueError("a correction needs a descent that declares it")

    def cut(vectors: Sequence[Tensor | None], missing: str) -> list[Tensor]:
        found = [vector for vector in vectors if vector is not None]
        if len(found) < len(vectors):
            raise ValueError(missing)
        if any(len(vector) not in (model.parameters, model.parameters + model.statistics) for vector in found):
            raise ValueError(f"a vector of a burst must have {model.parameters} entries, one for each parameter")
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
"""Splits flat vectors (devices, parameters) into views with the shapes and the order of an engine's weights."""


def split(block: Tensor, shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    """The tensors of flat vectors (devices, entries), each (devices, *shape) and a view."""
    shapes = list(shapes)
    pieces = block.split_with_sizes([math.prod(shape) for shape in shapes], dim=1)
    return [piece.view(len(block), *shape) for piece, shape in zip(pieces, shapes, strict=True)]


@contextmanager
def steered(training: LocalTraining, bursts: Sequence[Burst], weights: Tensors, views: Views) -> Iterator[Steering]:
    """Copies of the bursts' vectors as stacks; at the end the velocity goes back into the vectors.

    Stacks lie in memory as the weights do: PyTorch is fastest so.
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
    """Update the weights of the devices under way, which are the first of their stack: w <- w - eta s_r v."""
    underway = steering.each(lambda stacks: [stack[: len(weights[0])] for stack in stacks])
    directions = directed(gradients, weights, underway, training.descent)
    torch._foreach_add_(weights, _scaled(directions, shares), alpha=-training.learning_rate)


def directed(gradients: Tensors, weights: Tensors, steering: Steering, descent: Descent) -> Tensors:
    """The direction v of a step, as `Descent` defines it; advances the velocity. Devices are the first axis."""
    if steering.received is not None:
        away = torch._foreach_sub(weights, steering.received)
        gradients = torch._foreach_add(gradients, away, alpha=descent.pull)
    if steering.correction is not None:
        gradients = torch._foreach_add(gradients, steering.correction)
    if descent.clip_norm is not None:
        norms = torch.stack([torch.linalg.vector_norm(each.reshape(len(each), -1), dim=1) for each in gradients])
        gradients = _scaled(gradients, (descent.clip_norm / torch.linalg.vector_norm(norms, dim=0)).clamp(max=1))
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
    """Places of the bursts that have rounds, the longest first: a group's bursts then end at about the same time."""
    places = [place for place, burst in enumerate(bursts) if burst.rounds]
    return sorted(places, key=lambda place: (-bursts[place].rounds, bursts[place].device))


class Stack(ABC):
    """An engine in which devices step together, a group at a time; bursts that end sooner leave their group."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        places = longest_first(bursts)
        width = self._width(models[0]) if places else 1
        with self._training.compute.numerics():
            for first in range(0, len(places), width):
                group = places[first : first + width]
                self._run_group([models[place] for place in group], [bursts[place] for place in group])

    @abstractmethod
    def _width(self, model: Tensor) -> int:
        """How many devices of such a model are a group."""

    @abstractmethod
    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Copy in, step, copy out. No step is padding."""
