"""EF21-SGDM: Fatkhullin, Tyurin, Richtarik, "Momentum Provably Improves Error Feedback!", NeurIPS 2023.

In the paper all N workers send in every step, and g is a gradient. Here devices come rarely and one by one, and g is
the change over all local steps since the last model came. The server has an estimate h_n of every device, so it steps
along the mean of all h_n whichever device comes. N arrivals make one step of the paper, so each takes 1/N of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.errors import ScenarioError
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.servers import mean_update

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ef21(ErrorFeedback):
    """v <- (1 - eta) v + eta g; the device sends C(v - h), and h <- h + C(v - h). `momentum` is eta.

    The memory is e = v - h, so error feedback does the rest: x = e + eta (g - v) is there to be sent. The first v is g.
    """

    momentum: float = 0.5  # g is a mean of many gradients, and contacts are few: a smaller eta only delays
    conserves = False

    def __post_init__(self) -> None:
        if not 0 < self.momentum <= 1:
            raise ScenarioError("momentum", self.momentum, "must be above 0 and at most 1")

    def init(self, like: Tensor) -> State:
        """No contact, and v = 0 in one number for all entries."""
        return {"v": like.new_zeros(()).expand(len(like)), "contacts": 0}

    def offer(self, memory: Tensor, change: Tensor, state: Any) -> tuple[Tensor, State]:
        """e + eta (g - v)."""
        step = (change - state["v"]) * (self.momentum if state["contacts"] else 1.0)
        return memory + step, {"v": state["v"] + step, "contacts": state["contacts"] + 1}


@dataclass(frozen=True)
class Estimates(ServerRule):
    """w <- w - step (arrivals / N) h. The mean h of all h_n is the sum of all that was sent, divided by N."""

    step: float = 1.0  # more oscillates: h_n is late by the age of the model that the device trained from

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        """Every h_n is 0."""
        return {"h": model.new_zeros(len(model))}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        """Renew the mean, and step along it."""
        h = state["h"] + mean_update(model, arrivals, terms)
        return model.sub(h, alpha=self.step * len(arrivals) / terms.devices), {"h": h}
