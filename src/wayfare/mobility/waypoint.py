"""Random waypoint in a rectangle, started in its stationary state.

The stationary state is that of Navidi and Camp (IEEE Trans. Mobile Computing 3(1), 2004): a node is met on a long leg
more often than on a short one, at a low speed more often than at a high one, and in a pause as often as pauses last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility.base import Motion, motion_from_knots
from wayfare.scenario.mobility import WaypointMobility
from wayfare.streams import FLEET, Stream, generator

# Legs are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Waypoint:
    """Uniform waypoints, speed uniform in v [1 - spread, 1 + spread], pause uniform in [0, pause_max]."""

    spec: WaypointMobility

    def draw(self, devices: int, duration_s: float, seed: int) -> Motion:
        """The motion of every device and of the server, which moves like a device."""
        knots = [self._knots(generator(seed, Stream.DEVICE_MOTION, device), duration_s) for device in range(devices)]
        knots.append(self._knots(generator(seed, Stream.SERVER_MOTION, FLEET), duration_s))
        return motion_from_knots(knots)

    def _knots(self, rng: np.random.Generator, duration_s: float) -> tuple[Floats, Floats, Floats]:
        time_s, position_m = self._stationary_start(rng)
        times, places = [np.array(time_s)], [np.array(position_m)]
        while times[-1][-1] < duration_s:
            # One leg and the pause after it add two knots.
            targets_m = self._uniform_points(rng, _BLOCK)
            from_m = np.vstack([places[-1][-1], targets_m[:-1]])
            speed_mps = self._speeds(rng, _BLOCK)
            pause_s = rng.uniform(0.0, self.spec.pause_max_s, _BLOCK)
            travel_s = np.linalg.norm(targets_m - from_m, axis=1) / speed_mps
            times.append(times[-1][-1] + np.cumsum(np.column_stack([travel_s, pause_s]).ravel()))
            places.append(np.repeat(targets_m, 2, axis=0))
        time, place = np.concatenate(times), np.concatenate(places)
        return _clip(time, place, duration_s)

    def _stationary_start(self, rng: np.random.Generator) -> tuple[list[float], list[Floats]]:
        """Knots of the leg or pause under way at time 0, up to the first waypoint after it."""
        mean_pause_s = self.spec.pause_max_s / 2
        low, high = self._speed_bounds()
        mean_slowness = 1 / low if low == high else np.log(high / low) / (high - low)
        mean_travel_s = self._mean_leg_m() * mean_slowness
        if rng.random() < mean_pause_s / (mean_pause_s + mean_travel_s):
            place = self._uniform_points(rng, 1)[0]
            # Residual life of a uniform pause: density (1 - t / max) * 2 / max.
            return [0.0, self.spec.pause_max_s * (1 - np.sqrt(rng.random()))], [place, place]
        diagonal_m = float(np.hypot(self.spec.width_m, self.spec.height_m))
        while True:
            origin, target = self._uniform_points(rng, 2)
            length_m = float(np.linalg.norm(target - origin))
            if rng.random() * diagonal_m < length_m:
                break
        # Time-weighted speed: density proportional to 1 / v.
        speed_mps = low * (high / low) ** rng.random()
        done = rng.random()
        remaining_s = (1 - done) * length_m / speed_mps
        pause_s = rng.uniform(0.0, self.spec.pause_max_s)
        return [0.0, remaining_s, remaining_s + pause_s], [origin + done * (target - origin), target, target]

    def _speed_bounds(self) -> tuple[float, float]:
        return self.spec.speed_mps * (1 - self.spec.speed_spread), self.spec.speed_mps * (1 + self.spec.speed_spread)

    def _speeds(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.uniform(*self._speed_bounds(), count)

    def _uniform_points(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.random((count, 2)) * [self.spec.width_m, self.spec.height_m]

    def _mean_leg_m(self) -> float:
        """Mean distance of two uniform points of a rectangle (Ghosh 1951)."""
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


def _clip(time_s: Floats, place_m: Floats, duration_s: float) -> tuple[Floats, Floats, Floats]:
    """Knots up to the duration, the last leg cut there."""
    last = int(np.searchsorted(time_s, duration_s))
    x_m = np.append(place_m[:last, 0], np.interp(duration_s, time_s, place_m[:, 0]))
    y_m = np.append(place_m[:last, 1], np.interp(duration_s, time_s, place_m[:, 1]))
    return np.append(time_s[:last], duration_s), x_m, y_m
