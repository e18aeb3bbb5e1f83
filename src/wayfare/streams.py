"""The only source of random numbers: one generator per (seed, stream, device), and per round in some streams.

A world therefore depends on its seed alone: never on the scheme, the size of the fleet, or the order of draws.
"""

from __future__ import annotations

import os
from enum import IntEnum, unique

import numpy as np

from wayfare.arrays import Floats

FLEET = 0
"""The device of a stream that belongs to the fleet as a whole."""


@unique
class Stream(IntEnum):
    """One number for each use of random numbers. Numbers are never reused, because they define what a seed means."""

    DEVICE_MOTION = 1
    SERVER_MOTION = 2
    CONTACT_TIMES = 3
    CONTACT_DISTANCE = 4
    LINE_OF_SIGHT = 5
    SHADOWING = 6
    ENERGY_BUDGET = 7
    CLASS_SHARES = 8
    SAMPLE_DECK = 9
    MINIBATCH = 10
    INITIAL_MODEL = 11
    # 12 is retired.
    AUGMENTATION = 13
    SYNTHETIC_SCENES = 14
    SIGN_FLIPS = 15
    MONTE_CARLO = 16
    PEER_LINE_OF_SIGHT = 17
    PEER_SHADOWING = 18
    FIELD_FAULTS = 19
    CONTACT_FORECAST = 20
    RECALIBRATION = 21
    COMPRESSION = 22
    RANDOM_LAYERS = 23
    PILOT_SAMPLES = 24
    PRIVACY_NOISE = 25
    FIELD_MINIBATCH = 26


def generator(seed: int, stream: Stream, device: int, *more: int) -> np.random.Generator:
    """The generator of a key. Equal keys give equal draws; `more` holds the round in streams with one key per round."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, device, *more))))


def secret_normals(count: int) -> Floats:
    """Standard normal numbers from the operating system's secret source, which no key repeats.

    Box and Muller: sqrt(-2 ln u) cos(2 pi v) and sqrt(-2 ln u) sin(2 pi v), with 53 random bits in u and in v.
    """
    half = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * half), dtype="<u8") >> np.uint64(11)
    # u is in (0, 1], so that its logarithm is finite.
    u, v = (words[:half] + np.uint64(1)) * 2.0**-53, words[half:] * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(u)), 2.0 * np.pi * v
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def pair_number(one: int, other: int) -> int:
    """The number of a pair of devices, for streams of pairs. It does not depend on the size of the fleet."""
    low, high = min(one, other), max(one, other)
    return high * (high - 1) // 2 + low
