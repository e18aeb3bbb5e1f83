"""FedAsync: the server mixes whole models, older ones with less weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wayfare.scenario.exchange import Mixing
from wayfare.schemes.dense import Dense

StalenessFunction: TypeAlias = Literal["polynomial", "constant", "hinge"]
"""How the weight of a model falls with its age; the first is the default."""


@dataclass(frozen=True)
class FedAsync(Dense):
    """FedAsync (Xie, Koyejo and Gupta 2019): whole models, mixed by the server with a weight that falls with age."""

    name: str = "fedasync"
    staleness: StalenessFunction = "polynomial"
    mixing: Mixing = field(default_factory=Mixing)

    def mixing_weight(self, staleness_rounds: int) -> float:
        """a s(theta), with s = 1, (theta + 1)^-c, or 1 up to b and 1 / (d (theta - b) + 1) after it."""
        mixing = self.mixing
        if self.staleness == "polynomial":
            return mixing.weight * math.pow(staleness_rounds + 1.0, -mixing.polynomial_exponent)
        if self.staleness == "hinge" and staleness_rounds > mixing.hinge_rounds:
            return mixing.weight / (mixing.hinge_slope * (staleness_rounds - mixing.hinge_rounds) + 1.0)
        return mixing.weight
