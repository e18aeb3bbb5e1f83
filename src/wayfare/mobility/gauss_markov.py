"""Gauss-Markov motion in a rectangle with reflecting borders, started in its stationary state.

Speed and direction are autoregressive processes of order 1 (Liang and Haas, INFOCOM 1999; Camp, Boleng and Davies,
Wireless Communications and Mobile Computing 2(5), 2002). A node with a uniform start has a uniform position in the
folded plane at every later time, whatever its velocities, so the start below is stationary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility.base import Knots, knots_from
from wayfare.mobility.fold import fold
from wayfare.mobility.server import Moving
from wayfare.scenario.mobility import GaussMarkovMobility

# Steps are drawn in blocks of a fixed size, so that a longer run begins with the same motion as a shorter one.
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class GaussMarkov(Moving):
    """z[n] = a z[n-1] + sqrt(1 - a^2) w[n], w ~ N(0, 1), once for speed and once for direction.

    speed = max(v + sigma_v z, 0), direction = d + sigma_d z. Each node has its own mean direction d, uniform in
    [0, 2 pi). Steps start at a random phase, so that not all nodes turn at once.
    """

    spec: GaussMarkovMobility

    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        carry, mix = _transition(self.spec.memory)
        return [self._knots(rng, duration_s, carry, mix) for rng in rngs]

    def _knots(self, rng: np.random.Generator, duration_s: float, carry: Floats, mix: Floats) -> Knots:
        spec = self.spec
        start_m = rng.random(2) * [spec.width_m, spec.height_m]
        mean_direction = rng.uniform(0.0, 2 * np.pi)
        first_step_s = spec.step_s * (1 - rng.random())
        state = [rng.standard_normal((1, 2))]
        steps = 1
        while first_step_s + (steps - 1) * spec.step_s < duration_s:
            state.append(carry[:, None] * state[-1][-1] + mix @ rng.standard_normal((_BLOCK, 2)))
            steps += _BLOCK
        z = np.concatenate(state)
        speed_mps = np.maximum(spec.speed_mps + spec.speed_deviation_mps * z[:, 0], 0.0)
        direction = mean_direction + spec.direction_deviation_rad * z[:, 1]
        span_s = np.full(steps, spec.step_s)
        span_s[0] = first_step_s
        step_m = (speed_mps * span_s)[:, None] * np.column_stack([np.cos(direction), np.sin(direction)])
        place_m = start_m + np.vstack([np.zeros(2), np.cumsum(step_m, axis=0)])
        time_s = np.append(0.0, first_step_s + spec.step_s * np.arange(steps))
        return fold(*knots_from(time_s, place_m, duration_s), spec.width_m, spec.height_m)


def _transition(memory: float) -> tuple[Floats, Floats]:
    """A block of the autoregression as matrices: z[1..B] = carry z[0] + mix w[1..B]."""
    lag = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    mix: Floats = np.where(lag >= 0, memory ** np.abs(lag), 0.0) * np.sqrt(1 - memory**2)
    carry: Floats = memory ** np.arange(1.0, _BLOCK + 1)
    return carry, mix
