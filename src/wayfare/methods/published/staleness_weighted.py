"""Staleness-weighted updates: the weight of an update falls with its staleness.

W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, divide the
step by the staleness (about `exponent` 1). The polynomial is from C. Xie, S. Koyejo, I. Gupta, "Asynchronous
Federated Optimization", arXiv 2019, who weight models. FedBuff (Nguyen et al., AISTATS 2022) weights updates
with `exponent` 1/2, the default here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.servers import subtract_from

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StalenessWeights(ServerRule):
    """w <- w - (1/N) sum of (1 + staleness)^-exponent S(x); staleness counts rounds since the device's download."""

    exponent: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < math.inf:
            raise ScenarioError("exponent", self.exponent, "must be a finite number of at least 0")

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        model = model.clone()
        for arrival in arrivals:
            weight = math.pow(1.0 + arrival.staleness_rounds, -self.exponent)
            subtract_from(model, arrival, weight / terms.devices)
        return model, state
