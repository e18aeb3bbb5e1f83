"""Where devices are when they meet the server, for methods that look at it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare import mobility
from wayfare.arrays import Floats
from wayfare.mobility import Motion
from wayfare.world.draw import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Position and speed of the device when each opportunity of a world begins; NaN where its mobility has none."""

    position_m: Floats  # (opportunities, 2)
    speed_mps: Floats

    def position_of(self, row: int) -> tuple[float, float] | None:
        """The position at one opportunity."""
        x_m, y_m = self.position_m[row].tolist()
        return None if np.isnan(x_m) else (x_m, y_m)

    def speed_of(self, row: int) -> float | None:
        """The speed at one opportunity."""
        speed_mps = float(self.speed_mps[row])
        return None if np.isnan(speed_mps) else speed_mps


def find_whereabouts(world: World) -> Whereabouts:
    """Draws the motion of a world again: a world keeps its contacts only. Contact lists have no positions."""
    scenario, meets = world.scenario, world.meets
    found = Whereabouts(position_m=np.full((len(meets), 2), np.nan), speed_mps=np.full(len(meets), np.nan))
    model = mobility.from_spec(scenario.mobility, scenario.radio.range_m)
    motion = model.draw(scenario.fleet.devices, scenario.duration_s, world.seed)
    if not isinstance(motion, Motion):
        return found
    begin_s, by_device = _begin_s(world), np.argsort(meets.device, kind="stable")
    edges = np.searchsorted(meets.device[by_device], np.arange(1, scenario.fleet.devices))
    for device, rows in enumerate(np.split(by_device, edges)):
        found.position_m[rows] = motion.positions_m(device, begin_s[rows])
        found.speed_mps[rows] = motion.speeds_mps(device, begin_s[rows])
    return found


def _begin_s(world: World) -> Floats:
    """When each opportunity begins: the first contact of the device that starts in its round."""
    plan, meets = world.plan.with_server(), world.meets
    rounds = np.floor(plan.start_s / world.scenario.round_s).astype(np.int64) + 1
    # A plan is sorted by device and then by start, so these keys rise.
    width = int(rounds.max(initial=0)) + 1
    first = np.searchsorted(plan.device * width + rounds, meets.device * width + meets.round)
    return plan.start_s[first]
