"""SCAFFOLD: control variates take the drift of local steps out of every gradient (option II of the paper).

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning", ICML 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wayfare.methods.parts import NO_STATE, Arrival, LocalRule, ServerTerms, State
from wayfare.methods.servers import Add

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ControlVariates(Add):
    """When x of device n arrives, c_n <- x / reach - v_n, the mean of its gradients; c = (1/N) sum of all c_n.

    The model takes x as in Algorithm 1. Device n gets v_n = c - c_n and adds it to its gradients until it comes again.
    Only a whole upload tells the mean gradient; any other leaves c_n as it is. Statistics of normalisation have none.
    """

    takes_pieces = False
    hands_down = True
    uses_reach = True

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"mean": model.new_zeros(len(model)), "variates": NO_STATE, "handed": NO_STATE}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> tuple[Tensor, State]:
        mean, variates, handed = state["mean"], dict(state["variates"]), dict(state["handed"])
        for arrival in arrivals:
            device = str(arrival.device)
            if len(arrival.sent) == len(model) and arrival.reach > 0:
                variate = arrival.sent.values / arrival.reach - handed.get(device, 0.0)
                variate[len(model) - terms.statistics :] = 0.0
                mean = mean + (variate - variates.get(device, 0.0)) / terms.devices
                variates[device] = variate
        handed |= {str(arrival.device): mean - variates.get(str(arrival.device), 0.0) for arrival in arrivals}
        return super().apply(model, state, arrivals, terms)[0], {"mean": mean, "variates": variates, "handed": handed}

    def handed(self, state: Any, device: int) -> State:
        """v_n, once the device has sent something."""
        handed = state["handed"].get(str(device))
        return NO_STATE if handed is None else {"correction": handed}


@dataclass(frozen=True, kw_only=True)
class Corrected(LocalRule):
    """v_n, which came with the last model, is added to every gradient."""

    corrects = True
