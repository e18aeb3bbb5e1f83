"""How the learning rate changes over the rounds of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.scenario.model import Schedule as Shape


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of a round as a share of the one a scenario names; it depends on nothing but the round."""

    shape: Shape = "constant"
    rounds: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether every round has the whole rate, so that nothing need be multiplied."""
        return self.shape == "constant"

    def shares(self, first_round: int, count: int) -> Floats:
        """The shares of some rounds, counted from 1: cosine and linear begin at 1 and would reach 0 after the last."""
        past = (np.arange(first_round, first_round + count) - 1) / self.rounds
        match self.shape:
            case "cosine":
                return np.asarray((1 + np.cos(np.pi * past)) / 2)
            case "linear":
                return np.asarray(1 - past)
            case "constant":
                return np.ones(count)
