"""Energy budgets of devices for transmission."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats
from wayfare.scenario.model import Fleet
from wayfare.streams import Stream, generator


def draw_budgets(fleet: Fleet, seed: int) -> Floats:
    """Draw budgets uniformly between the bounds, in joules, and scale them to the total if one is set."""
    budgets = np.array(
        [
            generator(seed, Stream.ENERGY_BUDGET, device).uniform(fleet.energy_min_joules, fleet.energy_max_joules)
            for device in range(fleet.devices)
        ]
    )
    return budgets if fleet.energy_total_joules is None else budgets * (fleet.energy_total_joules / budgets.sum())
