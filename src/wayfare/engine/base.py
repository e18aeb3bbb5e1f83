"""Bursts of local steps: one interface, equal results, whatever runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.compute import Compute
from wayfare.learning.batches import Batches
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Task

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Burst:
    """Local SGD steps of one device, without a contact between them."""

    device: int
    first_round: int
    steps: int
    # The global model it trains from, which a proximal term pulls it towards; needed only where there is one.
    received: Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """What every device's local steps have in common."""

    task: Task
    batches: Batches
    learning_rate: float
    compute: Compute = field(default_factory=Compute)
    schedule: Schedule = field(default_factory=Schedule)
    local_loss: LocalLoss = field(default_factory=LocalLoss)


@dataclass(frozen=True, slots=True)
class Minibatches:
    """What the steps of a burst are taken on."""

    samples: Tensor  # (steps, batch)
    crops: Tensor | None  # (steps, batch, 3): how each sample is augmented, if it is
    shares: Tensor | None  # (steps,): of the learning rate, if it changes
    offset: Tensor | None  # (classes,): added to the logits of this device, if something is


class Engine(Protocol):
    """Runs bursts: w <- w - eta grad f(w, minibatch of (device, round)), once for each round.

    One that has ``ahead_steps`` says how far the trainer is to take devices along that nobody has met yet.
    """

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance ``models[i]``, a flat vector, in place by ``bursts[i]``; no device appears twice."""
        ...


def minibatches(training: LocalTraining, burst: Burst) -> Minibatches:
    """The minibatches of a burst, on the device that computes."""
    where = training.compute.device
    samples = training.batches.of(burst.device, burst.first_round, burst.steps)
    crops = training.batches.crops_of(burst.device, burst.first_round, burst.steps)
    offsets = training.local_loss.offsets
    return Minibatches(
        moved(torch.from_numpy(samples), where),
        None if crops is None else moved(torch.from_numpy(crops), where),
        None if training.schedule.is_constant else moved(_shares(training, burst), where),
        None if offsets is None else offsets[burst.device],
    )


def moved(values: Tensor, where: torch.device) -> Tensor:
    """Values where they are computed with.

    From pinned memory, which PyTorch does not use again before it has been read, a GPU takes them when it gets there;
    from any other the processor would wait until the GPU has done all that was asked of it before.
    """
    return values.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else values.to(where)


def _shares(training: LocalTraining, burst: Burst) -> Tensor:
    return torch.from_numpy(training.schedule.shares(burst.first_round, burst.steps))


def received_models(training: LocalTraining, bursts: Sequence[Burst], like: Tensor) -> list[Tensor] | None:
    """What a proximal term pulls each burst's model towards; None where there is no such term."""
    if not training.local_loss.pull:
        return None
    received = [burst.received.to(like) for burst in bursts if burst.received is not None]
    if len(received) < len(bursts):
        raise ValueError("a proximal term needs the model that each device received")
    return received


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
    tables = [training.batches.of(burst.device, burst.first_round, burst.steps) for burst in bursts]
    moves = [training.batches.crops_of(burst.device, burst.first_round, burst.steps) for burst in bursts]
    rates = [] if training.schedule.is_constant else [_shares(training, burst) for burst in bursts]
    offsets = training.local_loss.offsets
    if offsets is not None:
        offsets = offsets[[burst.device for burst in bursts]]
    steps, active = [], len(bursts)
    for step in range(bursts[0].steps):
        while bursts[active - 1].steps <= step:
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


def with_pull(gradients: Tensors, weights: Tensors, received: Tensors | None, pull: float) -> Tensors:
    """grad f + mu (w - received): gradients with that of the proximal term, if there is one."""
    if received is None:
        return gradients
    return torch._foreach_add(gradients, torch._foreach_sub(weights, received), alpha=pull)


def scaled(gradients: Tensors, shares: Tensor | None) -> Tensors:
    """Stacks of gradients, each device's times its share of the learning rate."""
    if shares is None:
        return gradients
    return [gradient * shares.to(gradient).view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def longest_first(bursts: Sequence[Burst]) -> list[int]:
    """Places of the bursts that have steps, the longest first: a group's bursts then end at about the same time."""
    places = [place for place, burst in enumerate(bursts) if burst.steps]
    return sorted(places, key=lambda place: (-bursts[place].steps, bursts[place].device))
