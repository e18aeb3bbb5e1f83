"""FedDyn: a dynamic regulariser moves the optimum of every device to that of the fleet.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.methods.parts import Arrival, LocalRule, Method, ServerRule, ServerTerms, State
from wayfare.methods.servers import mean_update

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DynamicServer(ServerRule):
    """s <- s + (1/N) sum of S(x), w <- w - (1/N) sum of (S(x) + s) over the devices of a round.

    s is the paper's h divided by the strength, which cancels, so only devices have a strength. A round with all devices
    is the paper's step with full participation. Asynchronously each upload makes 1/N of such a step.
    """

    def objection(self, method: Method) -> str | None:
        """Without the regulariser the sum would grow without bound."""
        has_one = isinstance(method.local, DynamicRegulariser) and method.local.strength > 0
        return None if has_one else "needs the local rule `dynamic-regulariser` with a strength above 0"

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"sum": model.new_zeros(len(model))}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        """Add the updates and the sum of all updates so far. Normalisation statistics get the updates only."""
        update, share = mean_update(model, arrivals, terms), len(arrivals) / terms.devices
        total = state["sum"] + update
        total[len(model) - terms.statistics :] = 0.0
        return model - update - share * total, {"sum": total}

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        total, parameters = -model.double(), len(model) - terms.statistics
        total[:parameters] = state["sum"][:parameters]
        return terms.devices * total


@dataclass(frozen=True, kw_only=True)
class DynamicRegulariser(LocalRule):
    """grad f - h_n + strength (w - received), with h_n <- h_n - strength (w - received) at every delivery."""

    strength: float = 0.1
    corrects = True

    def pull(self) -> float:
        return self.strength

    def delivered(self, state: Any, change: Tensor) -> State:
        return {"correction": state["correction"] - self.strength * change}  # -h_n; change is received - w
