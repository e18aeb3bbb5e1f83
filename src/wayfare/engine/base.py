"""Bursts of local steps: one interface, equal results, whatever runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.compute import Compute
from wayfare.learning.batches import Batches
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Task


@dataclass(frozen=True, slots=True)
class Burst:
    """Local SGD steps of one device, without a contact between them."""

    device: int
    first_round: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """What every device's local steps have in common."""

    task: Task
    batches: Batches
    learning_rate: float
    compute: Compute = field(default_factory=Compute)
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, slots=True)
class Minibatches:
    """What the steps of a burst are taken on."""

    samples: Tensor  # (steps, batch)
    crops: Tensor | None  # (steps, batch, 3): how each sample is augmented, if it is
    shares: Tensor | None  # (steps,): of the learning rate, if it changes


class Engine(Protocol):
    """Runs bursts: w <- w - eta grad f(w, minibatch of (device, round)), once for each round."""

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance ``models[i]``, a flat vector, in place by ``bursts[i]``; no device appears twice."""
        ...


def minibatches(training: LocalTraining, burst: Burst) -> Minibatches:
    """The minibatches of a burst, on the device that computes."""
    where = training.compute.device
    samples = torch.from_numpy(training.batches.of(burst.device, burst.first_round, burst.steps))
    crops = training.batches.crops_of(burst.device, burst.first_round, burst.steps)
    shares = None if training.schedule.is_constant else _shares(training, burst).to(where)
    return Minibatches(samples.to(where), None if crops is None else torch.from_numpy(crops).to(where), shares)


def _shares(training: LocalTraining, burst: Burst) -> Tensor:
    return torch.from_numpy(training.schedule.shares(burst.first_round, burst.steps))


@dataclass(frozen=True, slots=True)
class Stacking:
    """Bursts in one stack: at step t those that are under way, always a prefix, each with its own minibatch."""

    samples: list[Tensor]  # for every step (active, batch)
    crops: list[Tensor | None]  # for every step (active, batch, 3)
    shares: list[Tensor | None]  # for every step (active,): of the learning rate

    def steps(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Samples, crops and shares, step by step."""
        return zip(self.samples, self.crops, self.shares, strict=True)


def stack_bursts(training: LocalTraining, bursts: Sequence[Burst]) -> Stacking:
    """Minibatches by step of bursts that are sorted by falling length: bursts that end leave, so nothing is padding."""
    where = training.compute.device
    tables = [training.batches.of(burst.device, burst.first_round, burst.steps) for burst in bursts]
    moves = [training.batches.crops_of(burst.device, burst.first_round, burst.steps) for burst in bursts]
    samples: list[Tensor] = []
    crops: list[Tensor | None] = []
    shares: list[Tensor | None] = []
    rates = [] if training.schedule.is_constant else [_shares(training, burst) for burst in bursts]
    active = len(bursts)
    for step in range(bursts[0].steps):
        while bursts[active - 1].steps <= step:
            active -= 1
        samples.append(torch.from_numpy(np.stack([table[step] for table in tables[:active]])).to(where))
        chosen = [move[step] for move in moves[:active] if move is not None]
        crops.append(torch.from_numpy(np.stack(chosen)).to(where) if chosen else None)
        shares.append(torch.stack([rate[step] for rate in rates[:active]]).to(where) if rates else None)
    return Stacking(samples, crops, shares)


def scaled(gradients: list[Tensor] | tuple[Tensor, ...], shares: Tensor | None) -> list[Tensor] | tuple[Tensor, ...]:
    """Stacks of gradients, each device's times its share of the learning rate."""
    if shares is None:
        return gradients
    return [gradient * shares.to(gradient).view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def longest_first(bursts: Sequence[Burst]) -> list[int]:
    """Places of the bursts that have steps, the longest first: a group's bursts then end at about the same time."""
    places = [place for place, burst in enumerate(bursts) if burst.steps]
    return sorted(places, key=lambda place: (-bursts[place].steps, bursts[place].device))
