"""Robust server rules: they step along a centre of a full buffer that a minority of devices cannot move far.

Both need dense updates: an entry that most devices did not send has a centre of zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from wayfare.errors import ScenarioError
from wayfare.methods.guard import length
from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.servers import dense_update, step_along

if TYPE_CHECKING:
    from torch import Tensor

_WEISZFELD_STEPS = 20


@dataclass(frozen=True)
class _Centre(ServerRule, ABC):
    """w <- w - step times the centre of the buffer when it holds `size` updates."""

    size: int = 5
    step: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 3:
            raise ScenarioError("size", self.size, "must be a whole number of at least 3")
        if not 0 < self.step < math.inf:
            raise ScenarioError("step", self.step, "must be a finite number above 0")

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"buffer": {}}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        buffer = dict(state["buffer"])
        for arrival in arrivals:
            buffer[str(len(buffer))] = dense_update(model, arrival)
            if len(buffer) == self.size:
                model = step_along(model, self.centre(list(buffer.values())), self.step, terms)
                buffer = {}
        return model, {"buffer": buffer}

    @abstractmethod
    def centre(self, updates: list[Tensor]) -> Tensor:
        """The centre of a full buffer."""


@dataclass(frozen=True)
class TrimmedMean(_Centre):
    """Coordinate-wise mean of a buffer without its `trim` largest and smallest values (Yin et al. 2018)."""

    trim: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.trim, int) or not 0 < 2 * self.trim < self.size:
            raise ScenarioError(
                "trim", self.trim, f"must be a whole number of at least 1, below half of size = {self.size}"
            )

    def centre(self, updates: list[Tensor]) -> Tensor:
        import torch

        return torch.stack(updates).sort(dim=0).values[self.trim : self.size - self.trim].mean(dim=0)


@dataclass(frozen=True)
class GeometricMedian(_Centre):
    """The point with the smallest sum of distances to the updates of a buffer (RFA, Pillutla et al. 2022)."""

    def centre(self, updates: list[Tensor]) -> Tensor:
        """Weiszfeld's iteration: z <- sum of x / |x - z| over sum of 1 / |x - z|."""
        smallest = median(map(length, updates)) * 1e-6 or 1.0
        centre = updates[0] * 0
        for _ in range(_WEISZFELD_STEPS):
            weights = [1.0 / max(length(update - centre), smallest) for update in updates]
            # One by one: the order of additions must not depend on the number of threads.
            shares = [weight / sum(weights) for weight in weights]
            centre = sum((share * update for share, update in zip(shares, updates, strict=True)), centre * 0)
        return centre
