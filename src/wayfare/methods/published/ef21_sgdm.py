"""EF21-SGDM: Fatkhullin, Tyurin, Richtarik, "Momentum Provably Improves Error Feedback!", NeurIPS 2023.

In the paper g is a gradient. Here it is the change since the last download, and devices arrive one by one. At each
arrival the server steps by 1/N along the mean of its estimates h_n: N arrivals make one step of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.errors import ScenarioError
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.parts import Arrival, Method, ServerRule, ServerTerms, State
from wayfare.methods.servers import mean_update

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ef21(ErrorFeedback):
    """v <- (1 - eta) v + eta g, first v = g; the device sends C(v - h), and h <- h + C(v - h). `momentum` is eta."""

    momentum: float = 0.5  # g averages many gradients and contacts are few: a smaller eta only delays
    conserves = False

    def __post_init__(self) -> None:
        if not 0 < self.momentum <= 1:
            raise ScenarioError("momentum", self.momentum, "must be above 0 and at most 1")

    def objection(self, method: Method) -> str | None:
        """Other server rules would read the differences as updates."""
        return None if isinstance(method.server, Estimates) else "ef21 needs the server rule estimates"

    def init(self, like: Tensor) -> State:
        """v = 0, stored as one expanded number."""
        return {"v": like.new_zeros(()).expand(len(like)), "contacts": 0}

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        """v - h, as the memory (the unsent part of the last v - h) plus the step of v."""
        step = (change - state["v"]) * (self.momentum if state["contacts"] else 1.0)
        return memory + step, {"v": state["v"] + step, "contacts": state["contacts"] + 1}


@dataclass(frozen=True)
class Estimates(ServerRule):
    """w <- w - step (arrivals / N) h. The mean h of all h_n is the sum of all that was sent, divided by N."""

    step: float = 1.0  # more oscillates: h_n is late by the age of the model that the device trained from

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"h": model.new_zeros(len(model))}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        h = state["h"] + mean_update(model, arrivals, terms)
        return model.sub(h, alpha=self.step * len(arrivals) / terms.devices), {"h": h}
