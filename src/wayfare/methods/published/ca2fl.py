"""CA2FL: buffered updates, calibrated with the last update of every device.

Y. Wang, Y. Cao, J. Wu, R. Chen, J. Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.servers import step_along

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CalibratedBuffer(Buffer):
    """w <- w - step v with v = h + (1/size) sum of (x_n - h_n) over a full buffer.

    h_n is the last update of device n in an earlier buffer, initially 0, and h = (1/N) sum of all h_n. So a step
    represents the whole fleet, not only the devices with many contacts. Normalisation statistics are not
    calibrated.
    """

    taken = ServerRule.taken  # a step is not the mean of the arrivals

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        nothing: State = {}
        return {
            **super().init(model, terms),
            "mean": model.new_zeros(len(model)),  # h
            "cached": nothing,  # h_n by device
            "latest": nothing,  # the buffered updates by device, which become h_n with the next step
        }

    def put(self, state: dict[str, Any], update: Tensor, arrival: Arrival, terms: ServerTerms) -> State:
        name, latest = str(arrival.device), update.clone()
        latest[len(latest) - terms.statistics :] = 0.0
        state["latest"] = {**state["latest"], name: latest}
        return super().put(state, update - state["cached"].get(name, 0.0), arrival, terms)

    def release(self, model: Tensor, state: dict[str, Any], terms: ServerTerms) -> tuple[Tensor, State]:
        """Step along v, then cache the buffered updates."""
        mean, cached = state["mean"], state["cached"]
        model = step_along(model, mean + state["sum"] / self.size, self.step, terms)
        for name, latest in state["latest"].items():
            mean = mean + (latest - cached.get(name, 0.0)) / terms.devices
        return model, state | {"mean": mean, "cached": {**cached, **state["latest"]}, "latest": {}}
