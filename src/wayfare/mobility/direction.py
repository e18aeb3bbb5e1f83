"""Random direction in a rectangle: straight to the border, a pause, then a new direction inward.

The model of Royer, Melliar-Smith and Moser (ICC 2001). We know no closed form of its stationary state, so a run
starts after a warm-up of dozens of crossings; the motion forgets its start within a few.
The uniform variant, whose stationary state is known, is the random walk with `leg_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility import legs
from wayfare.mobility.base import Knots, knots_from
from wayfare.mobility.server import Moving
from wayfare.scenario.mobility import DirectionMobility

# Legs are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 64
_WARM_UP_CROSSINGS = 30


@dataclass(frozen=True, slots=True)
class Direction(Moving):
    """Direction uniform among those inward, speed uniform in v [1 - spread, 1 + spread], pause uniform."""

    spec: DirectionMobility

    @property
    def warm_up_s(self) -> float:
        """The time that nodes move before time 0: dozens of crossings at the mean speed, each with a pause."""
        diagonal_m = float(np.hypot(self.spec.width_m, self.spec.height_m))
        return _WARM_UP_CROSSINGS * (diagonal_m / self.spec.speed_mps + self.spec.pause_max_s)

    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        """Advance all nodes together, leg by leg."""
        if not rngs:
            return []
        spec, until_s = self.spec, self.warm_up_s + duration_s
        low, high = spec.speed_bounds_mps
        place = legs.side_by_side(rngs, 2) * [spec.width_m, spec.height_m]
        clock_s = np.zeros(len(rngs))
        times, places = [clock_s], [place]
        while clock_s.min() < until_s:
            uniform = np.stack([rng.random((_BLOCK, 3)) for rng in rngs], axis=1)
            for angle_u, speed_u, pause_u in uniform.transpose(0, 2, 1):
                target = self._to_border(place, self._heading(place, angle_u))
                arrival_s = clock_s + np.linalg.norm(target - place, axis=1) / (low + (high - low) * speed_u)
                place, clock_s = target, arrival_s + spec.pause_max_s * pause_u
                times += [arrival_s, clock_s]
                places += [place, place]
        time_s, place_m = np.stack(times, axis=1), np.stack(places, axis=1)
        return [knots_from(t, p, duration_s, self.warm_up_s) for t, p in zip(time_s, place_m, strict=True)]

    def _heading(self, place: Floats, uniform: Floats) -> Floats:
        """Directions uniform in the half circle away from the border; in the full circle for the first leg."""
        left, right = place[:, 0] <= 0, place[:, 0] >= self.spec.width_m
        low, high = place[:, 1] <= 0, place[:, 1] >= self.spec.height_m
        turn = np.pi * uniform
        # A corner has probability 0 and counts as one of its sides: at worst the next leg has length 0.
        headings: Floats = np.select(
            [left, right, low, high], [turn - np.pi / 2, turn + np.pi / 2, turn, turn + np.pi], 2 * np.pi * uniform
        )
        return headings

    def _to_border(self, place: Floats, heading: Floats) -> Floats:
        """The point where the ray from each position first meets the border."""
        sides_m = np.array([self.spec.width_m, self.spec.height_m])
        along = np.column_stack([np.cos(heading), np.sin(heading)])
        edge = np.where(along > 0, sides_m, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(along == 0, np.inf, (edge - place) / along)
        first = np.argmin(reach, axis=1)
        rows = np.arange(len(place))
        target = np.clip(place + reach[rows, first][:, None] * along, 0.0, sides_m)
        # Exactly on the border, so that the next heading finds its side.
        target[rows, first] = edge[rows, first]
        return np.asarray(target, dtype=np.float64)
