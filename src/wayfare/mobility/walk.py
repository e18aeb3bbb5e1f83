"""Random walk in a rectangle with reflecting borders, started in its stationary state.

Legs have exponential durations or distances and uniform directions. Reflection keeps the uniform
distribution, so position and heading are uniform at any time (Le Boudec and
Vojnovic, Perfect simulation and stationarity of a class of mobility models, INFOCOM 2005). With a mean duration
this is also the uniform random direction model (Nain, Towsley, Liu and Liu, Properties of random direction models,
INFOCOM 2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility import legs
from wayfare.mobility.base import Knots, knots_from
from wayfare.mobility.fold import fold
from wayfare.mobility.server import Moving
from wayfare.scenario.mobility import WalkMobility

# Legs are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 64
_DEFAULT_LEG_S = 30.0


@dataclass(frozen=True, slots=True)
class Walk(Moving):
    """Leg ~ exp(mean leg_s) seconds or exp(mean leg_m) metres, direction uniform in [0, 2 pi), then a pause."""

    spec: WalkMobility

    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        return [self._knots(rng, duration_s) for rng in rngs]

    def _knots(self, rng: np.random.Generator, duration_s: float) -> Knots:
        """Draw the motion in the plane, then reflect it."""
        spec = self.spec
        start_m = rng.random(2) * [spec.width_m, spec.height_m]
        first_pause_s, first_speed_mps = self._stationary_start(rng)
        times, places = [np.array([0.0, first_pause_s])], [np.array([start_m, start_m])]
        while times[-1][-1] < duration_s:
            angle = rng.uniform(0.0, 2 * np.pi, _BLOCK)
            speed_mps = legs.leg_speeds_mps(rng, spec, _BLOCK)
            if first_speed_mps is not None:
                speed_mps[0], first_speed_mps = first_speed_mps, None
            travel_s = self._travel_s(rng, speed_mps)
            pause_s = legs.leg_pauses_s(rng, spec, _BLOCK)
            step_m = (speed_mps * travel_s)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
            times.append(times[-1][-1] + np.cumsum(np.column_stack([travel_s, pause_s]).ravel()))
            places.append(np.repeat(places[-1][-1] + np.cumsum(step_m, axis=0), 2, axis=0))
        time_s, x_m, y_m = knots_from(np.concatenate(times), np.concatenate(places), duration_s)
        return fold(time_s, x_m, y_m, spec.width_m, spec.height_m)

    def _stationary_start(self, rng: np.random.Generator) -> tuple[float, float | None]:
        """The remainder of a pause at time 0, or the speed of the current leg.

        Exponential legs have no memory, so the remainder of one is distributed like a whole leg.
        """
        leg_m = self.spec.leg_m
        mean_travel_s = self._mean_leg_s() if leg_m is None else leg_m * legs.mean_slowness_spm(self.spec)
        if rng.random() < legs.pause_share(self.spec, mean_travel_s):
            return legs.residual_pause_s(rng, self.spec), None
        # With a mean distance, slow legs last longer, so the current leg is more often slow.
        return 0.0, None if leg_m is None else legs.time_weighted_speed_mps(rng, self.spec)

    def _travel_s(self, rng: np.random.Generator, speed_mps: Floats) -> Floats:
        unit = rng.exponential(1.0, len(speed_mps))
        travel_s: Floats = unit * (self._mean_leg_s() if self.spec.leg_m is None else self.spec.leg_m / speed_mps)
        return travel_s

    def _mean_leg_s(self) -> float:
        return _DEFAULT_LEG_S if self.spec.leg_s is None else self.spec.leg_s
