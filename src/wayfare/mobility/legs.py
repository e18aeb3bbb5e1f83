"""Common draws of models whose legs have a speed and a pause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wayfare.arrays import Floats
from wayfare.scenario.mobility import LegMobility


def leg_speeds_mps(rng: np.random.Generator, spec: LegMobility, count: int) -> Floats:
    """Speeds of legs: uniform in v [1 - spread, 1 + spread]."""
    return rng.uniform(*spec.speed_bounds_mps, count)


def leg_pauses_s(rng: np.random.Generator, spec: LegMobility, count: int) -> Floats:
    """Pauses after legs: uniform in [0, pause_max]."""
    return rng.uniform(0.0, spec.pause_max_s, count)


def mean_slowness_spm(spec: LegMobility) -> float:
    """E[1/v] over legs, in seconds per metre."""
    low, high = spec.speed_bounds_mps
    return 1 / low if low == high else float(np.log(high / low) / (high - low))


def time_weighted_speed_mps(rng: np.random.Generator, spec: LegMobility) -> float:
    """The speed of the leg at a random time, if lengths do not depend on speed: density ~ 1 / v."""
    low, high = spec.speed_bounds_mps
    return float(low * (high / low) ** rng.random())


def pause_share(spec: LegMobility, mean_travel_s: float) -> float:
    mean_pause_s = spec.pause_max_s / 2
    return mean_pause_s / (mean_pause_s + mean_travel_s)


def residual_pause_s(rng: np.random.Generator, spec: LegMobility) -> float:
    """The remainder of the pause at a random time: density (1 - t / max) * 2 / max."""
    return float(spec.pause_max_s * (1 - np.sqrt(rng.random())))


def side_by_side(rngs: Sequence[np.random.Generator], width: int) -> Floats:
    """Uniform numbers for nodes that advance together, one row per node from its own generator."""
    return np.stack([rng.random(width) for rng in rngs])
