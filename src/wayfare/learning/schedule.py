"""How the learning rate changes over the rounds of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.scenario.model import Schedule as Shape


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of a round as a share of the scenario's rate."""

    shape: Shape = "constant"
    rounds: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether every round has the full rate, so that the multiplication can be skipped."""
        return self.shape == "constant"

    def shares(self, first_round: int, count: int) -> Floats:
        """The shares of `count` rounds, counted from 1. Cosine and linear fall from 1 to 0 and stay there."""
        past = np.minimum((np.arange(first_round, first_round + count) - 1) / self.rounds, 1.0)
        match self.shape:
            case "cosine":
                return np.asarray((1 + np.cos(np.pi * past)) / 2)
            case "linear":
                return np.asarray(1 - past)
            case "constant":
                return np.ones(count)
