"""Random waypoint in a rectangle, started in its stationary state.

The stationary state is that of Navidi and Camp (IEEE Trans. Mobile Computing 3(1), 2004): at a random time a node is
more often on a long leg than on a short one and at a low speed than at a high one, and pauses by their share of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility import legs
from wayfare.mobility.base import Knots, knots_from
from wayfare.mobility.server import Moving
from wayfare.scenario.mobility import WaypointMobility

# Legs are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Waypoint(Moving):
    """Uniform waypoints, speed uniform in v [1 - spread, 1 + spread], pause uniform in [0, pause_max]."""

    spec: WaypointMobility

    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        return [self._knots(rng, duration_s) for rng in rngs]

    def _knots(self, rng: np.random.Generator, duration_s: float) -> Knots:
        time_s, position_m = self._stationary_start(rng)
        times, places = [np.array(time_s)], [np.array(position_m)]
        while times[-1][-1] < duration_s:
            # One leg and the pause after it add two knots.
            targets_m = self._uniform_points(rng, _BLOCK)
            from_m = np.vstack([places[-1][-1], targets_m[:-1]])
            speed_mps = legs.leg_speeds_mps(rng, self.spec, _BLOCK)
            pause_s = legs.leg_pauses_s(rng, self.spec, _BLOCK)
            travel_s = np.linalg.norm(targets_m - from_m, axis=1) / speed_mps
            times.append(times[-1][-1] + np.cumsum(np.column_stack([travel_s, pause_s]).ravel()))
            places.append(np.repeat(targets_m, 2, axis=0))
        return knots_from(np.concatenate(times), np.concatenate(places), duration_s)

    def _stationary_start(self, rng: np.random.Generator) -> tuple[list[float], list[Floats]]:
        """Knots of the current leg or pause at time 0, up to the next waypoint."""
        mean_travel_s = self._mean_leg_m() * legs.mean_slowness_spm(self.spec)
        if rng.random() < legs.pause_share(self.spec, mean_travel_s):
            place = self._uniform_points(rng, 1)[0]
            return [0.0, legs.residual_pause_s(rng, self.spec)], [place, place]
        diagonal_m = float(np.hypot(self.spec.width_m, self.spec.height_m))
        while True:
            origin, target = self._uniform_points(rng, 2)
            length_m = float(np.linalg.norm(target - origin))
            if rng.random() * diagonal_m < length_m:
                break
        speed_mps = legs.time_weighted_speed_mps(rng, self.spec)
        done = rng.random()
        remaining_s = (1 - done) * length_m / speed_mps
        pause_s = float(legs.leg_pauses_s(rng, self.spec, 1)[0])
        return [0.0, remaining_s, remaining_s + pause_s], [origin + done * (target - origin), target, target]

    def _uniform_points(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.random((count, 2)) * [self.spec.width_m, self.spec.height_m]

    def _mean_leg_m(self) -> float:
        """The mean distance of two uniform points in a rectangle, in metres (Ghosh 1951)."""
        a, b = self.spec.width_m, self.spec.height_m
        d = np.hypot(a, b)
        return float(
            (
                a**3 / b**2
                + b**3 / a**2
                + d * (3 - a**2 / b**2 - b**2 / a**2)
                + 2.5 * (b**2 / a * np.log((a + d) / b) + a**2 / b * np.log((b + d) / a))
            )
            / 15
        )
