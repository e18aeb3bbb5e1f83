"""Bursts of local steps: one interface, equal results, whatever runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from wayfare.learning.batches import Batches
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


class Engine(Protocol):
    """Runs bursts: w <- w - eta grad f(w, minibatch of (device, round)), once for each round."""

    def run(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Advance ``models[burst.device]`` in place for every burst; no device appears twice."""
        ...
