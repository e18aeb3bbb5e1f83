"""FedBuff: the server collects a few updates, then takes one step along their mean.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.servers import dense_update, step_along

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Buffer(ServerRule):
    """w <- w - (step / size) sum of S(x) over the buffer when it holds `size` updates (K in the paper).

    The sum is divided by K, not by the size of the fleet: a full buffer moves the model as far as a round of
    FedAvg with K devices. The paper's optional staleness weights are a separate rule (`StalenessWeights`).
    """

    size: int = 5
    step: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise ScenarioError("size", self.size, "must be a whole number of at least 1")
        if not self.step > 0:
            raise ScenarioError("step", self.step, "must be above 0")

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"sum": model.new_zeros(len(model)), "count": 0}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        """Add updates one by one. A buffer that fills up during a round is applied at once."""
        for arrival in arrivals:
            state = self.put(dict(state), dense_update(model, arrival), arrival, terms)
            if state["count"] == self.size:
                model, state = self.release(model, dict(state), terms)
                state = {**state, **Buffer.init(self, model, terms)}
        return model, state

    def put(self, state: dict[str, Any], update: Tensor, arrival: Arrival, terms: ServerTerms) -> State:
        return state | {"sum": state["sum"] + update, "count": state["count"] + 1}

    def release(self, model: Tensor, state: dict[str, Any], terms: ServerTerms) -> tuple[Tensor, State]:
        """The step of a full buffer; the caller empties it."""
        return step_along(model, state["sum"] / self.size, self.step, terms), state

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        total = -self.size * model.double()
        total[: len(model) - terms.statistics] /= self.step
        return total.add(state["sum"])
