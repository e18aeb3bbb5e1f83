"""Position and speed of devices at contacts, for upload rules that need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare import mobility
from wayfare.arrays import Floats
from wayfare.contacts import ContactPlan, Opportunities
from wayfare.mobility import Motion
from wayfare.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Position and speed of the device when each opportunity begins; NaN if the mobility has no positions."""

    position_m: Floats  # (opportunities, 2)
    speed_mps: Floats

    def at(self, row: int) -> tuple[tuple[float, float] | None, float | None]:
        (x_m, y_m), speed_mps = self.position_m[row].tolist(), float(self.speed_mps[row])
        return (None, None) if np.isnan(speed_mps) else ((x_m, y_m), speed_mps)


def find_whereabouts(scenario: Scenario, seed: int, plan: ContactPlan, meets: Opportunities) -> Whereabouts:
    """Draw the motion of a world again, because a world stores only contacts. Contact lists have no positions."""
    found = Whereabouts(position_m=np.full((len(meets), 2), np.nan), speed_mps=np.full(len(meets), np.nan))
    model = mobility.from_spec(scenario.mobility, scenario.radio.range_m)
    motion = model.draw(scenario.fleet.devices, scenario.duration_s, seed)
    if not isinstance(motion, Motion):
        return found
    begin_s, by_device = _begin_s(plan.with_server(), meets, scenario.round_s), np.argsort(meets.device, kind="stable")
    edges = np.searchsorted(meets.device[by_device], np.arange(1, scenario.fleet.devices))
    for device, rows in enumerate(np.split(by_device, edges)):
        found.position_m[rows] = motion.positions_m(device, begin_s[rows])
        found.speed_mps[rows] = motion.speeds_mps(device, begin_s[rows])
    return found


def _begin_s(plan: ContactPlan, meets: Opportunities, round_s: float) -> Floats:
    """The start of each opportunity: that of the device's first contact in its round."""
    rounds = np.floor(plan.start_s / round_s).astype(np.int64) + 1
    # A plan is sorted by device and start, so these keys are ascending.
    width = int(rounds.max(initial=0)) + 1
    return plan.start_s[np.searchsorted(plan.device * width + rounds, meets.device * width + meets.round)]
