"""Manhattan grid: motion along the streets of a grid, with a choice at every crossing.

The model of UMTS 30.03 and of Bai, Sadagopan and Helmy (INFOCOM 2003): at a crossing a node turns left or right or
goes straight on. A turn that would leave the grid goes to the other side; at the border a node must turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.mobility import legs
from wayfare.mobility.base import Knots, knots_from
from wayfare.mobility.server import Moving
from wayfare.scenario.mobility import ManhattanMobility

# Legs are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 64
# East, north, west, south: one more is a turn to the left.
_STEPS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])


@dataclass(frozen=True, slots=True)
class Manhattan(Moving):
    """One leg per block, speed uniform in v [1 - spread, 1 + spread], pause at a crossing uniform.

    With chance 1/2 for straight on and 1/4 for each turn, all streets are equally likely in both directions, because
    each is entered with total chance 1 from its predecessors. The start is then stationary. With other chances the
    streets at the border differ, so a run starts after a warm-up of twice the square of the blocks across.
    """

    spec: ManhattanMobility

    @property
    def warm_up_s(self) -> float:
        if self.spec.left == self.spec.right == 0.25:
            return 0.0
        leg_s = self.spec.block_m / self.spec.speed_mps + self.spec.pause_max_s
        return 2 * int(self._blocks().max()) ** 2 * leg_s

    def _blocks(self) -> Ints:
        sides_m = np.array([self.spec.width_m, self.spec.height_m])
        return np.rint(sides_m / self.spec.block_m).astype(np.int64)

    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        """Advance all nodes together, leg by leg."""
        if not rngs:
            return []
        spec, until_s = self.spec, self.warm_up_s + duration_s
        low, high = spec.speed_bounds_mps
        place, crossing, heading, arrival_s, clock_s = self._stationary_start(legs.side_by_side(rngs, 5))
        times, places = [np.zeros(len(rngs)), arrival_s, clock_s], [place, crossing, crossing]
        while clock_s.min() < until_s:
            uniform = np.stack([rng.random((_BLOCK, 3)) for rng in rngs], axis=1)
            for turn_u, speed_u, pause_u in uniform.transpose(0, 2, 1):
                heading = self._turn(crossing, heading, turn_u)
                crossing = crossing + _STEPS[heading]
                arrival_s = clock_s + spec.block_m / (low + (high - low) * speed_u)
                clock_s = arrival_s + spec.pause_max_s * pause_u
                times += [arrival_s, clock_s]
                places += [crossing, crossing]
        # Convert blocks to metres by shares of the side, so that the last street lies exactly on the border.
        sides_m = np.array([spec.width_m, spec.height_m])
        time_s, place_m = np.stack(times, axis=1), np.stack(places, axis=1) / self._blocks() * sides_m
        return [knots_from(t, p, duration_s, self.warm_up_s) for t, p in zip(time_s, place_m, strict=True)]

    def _stationary_start(self, uniform: Floats) -> tuple[Floats, Ints, Ints, Floats, Floats]:
        """Position, next crossing and heading at time 0, and the times of arrival and departure there."""
        spec, (across, up) = self.spec, self._blocks()
        state_u, street_u, done, speed_u, pause_u = uniform.T
        # Streets from west to east first, row by row, then those from south to north.
        eastward = across * (up + 1)
        street = np.floor(street_u * 2 * (eastward + up * (across + 1))).astype(np.int64)
        street, back = street // 2, street % 2
        rest = street - eastward
        is_east = rest < 0
        origin = np.where(
            is_east[:, None],
            np.column_stack([street % across, street // across]),
            np.column_stack([rest // up, rest % up]),
        )
        heading = np.where(is_east, 0, 1)
        # The opposite direction starts at the far end of the street.
        origin = origin + back[:, None] * _STEPS[heading]
        heading = heading + 2 * back
        crossing = origin + _STEPS[heading]
        low, high = spec.speed_bounds_mps
        # Time-weighted speed: density proportional to 1 / v.
        remaining_s = (1 - done) * spec.block_m / (low * (high / low) ** speed_u)
        pausing = state_u < legs.pause_share(spec, spec.block_m * legs.mean_slowness_spm(spec))
        place = np.where(pausing[:, None], crossing, origin + done[:, None] * _STEPS[heading])
        arrival_s = np.where(pausing, 0.0, remaining_s)
        # The remainder of a uniform pause for nodes in one, a whole pause for the others.
        pause_s = spec.pause_max_s * np.where(pausing, 1 - np.sqrt(pause_u), pause_u)
        return place, crossing, heading, arrival_s, arrival_s + pause_s

    def _turn(self, crossing: Ints, heading: Ints, uniform: Floats) -> Ints:
        """The next heading: straight on, left or right if the grid allows it, otherwise back."""
        left, right = self.spec.left, self.spec.right
        ahead_ok, left_ok, right_ok = (self._inside(crossing + _STEPS[(heading + by) % 4]) for by in (0, 1, 3))
        ahead = np.where(ahead_ok, 1 - left - right, 0.0)
        to_left = np.where(left_ok, np.where(right_ok, left, left + right), 0.0)
        to_right = np.where(right_ok, np.where(left_ok, right, left + right), 0.0)
        total = ahead + to_left + to_right
        pick = uniform * total
        by = np.where(pick < ahead, 0, np.where(pick < ahead + to_left, 1, 3))
        turned: Ints = (heading + np.where(total > 0, by, 2)) % 4
        return turned

    def _inside(self, crossing: Ints) -> np.ndarray:
        inside: np.ndarray = np.all((crossing >= 0) & (crossing <= self._blocks()), axis=1)
        return inside
