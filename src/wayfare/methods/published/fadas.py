"""FADAS: buffered updates, AMSGrad steps, and a learning rate that falls with delay.

Y. Wang, S. Wang, S. Lu, J. Chen, "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.servers import step_along

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdaptiveBuffer(Buffer):
    """AMSGrad along the mean d of a full buffer; T is the largest delay in it, in rounds.

    m <- momentum m + (1 - momentum) d,  v <- second_moment v + (1 - second_moment) d^2,  u <- max(u, v),
    w <- w - eta m / (sqrt(u) + epsilon),  eta = step if T <= threshold_rounds, else min(step, 1 / T).
    The paper counts delays in server steps. Here server and devices share rounds as their clock.
    """

    step: float = 0.01
    momentum: float = 0.9
    second_moment: float = 0.99
    epsilon: float = 1e-8
    threshold_rounds: int = 10
    taken = ServerRule.taken  # a step is not the mean of the arrivals

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.momentum < 1 and 0 <= self.second_moment < 1 and self.epsilon > 0):
            raise ScenarioError("adaptive-buffer", self, "momenta must be 0 or more and below 1, epsilon above 0")

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        zero = model.new_zeros(len(model) - terms.statistics)
        return {**super().init(model, terms), "delay_rounds": 0, "mean": zero, "square": zero, "peak": zero}

    def put(self, state: dict[str, Any], update: Tensor, arrival: Arrival, terms: ServerTerms) -> State:
        state["delay_rounds"] = max(state["delay_rounds"], arrival.staleness_rounds)
        return super().put(state, update, arrival, terms)

    def release(self, model: Tensor, state: dict[str, Any], terms: ServerTerms) -> tuple[Tensor, State]:
        """An AMSGrad step. Normalisation statistics move by the plain mean."""
        direction, delay = state["sum"] / self.size, state["delay_rounds"]
        towards = direction[: len(model) - terms.statistics]
        mean = towards.lerp(state["mean"], self.momentum)
        square = towards.square().lerp(state["square"], self.second_moment)
        peak = state["peak"].maximum(square)
        direction[: len(towards)] = mean / (peak.sqrt() + self.epsilon)
        step = self.step if delay <= self.threshold_rounds else min(self.step, 1 / delay)
        state |= {"delay_rounds": 0, "mean": mean, "square": square, "peak": peak}
        return step_along(model, direction, step, terms), state
