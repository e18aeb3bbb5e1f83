"""SCAFFOLD: control variates remove the drift of local steps from every gradient (option II of the paper).

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
    """When x of device n arrives, c_n <- x / reach - v_n, its mean gradient; c = (1/N) sum of all c_n.

    The model changes as in Algorithm 1. Device n receives v_n = c - c_n and adds it to its gradients until its next
    contact. Only a whole upload gives the mean gradient; others leave c_n unchanged. Normalisation statistics have no
    control variates.
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
        """v_n, after the first upload of the device."""
        handed = state["handed"].get(str(device))
        return NO_STATE if handed is None else {"correction": handed}


@dataclass(frozen=True, kw_only=True)
class Corrected(LocalRule):
    """Adds v_n of the last download to every gradient."""

    corrects = True
