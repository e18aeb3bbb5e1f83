"""The only source of random numbers: one generator per (seed, stream, device), and per round in some streams.

A world therefore depends on its seed alone: never on the scheme, the size of the fleet, or the order of draws.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np

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
    FIELD_MINIBATCH = 25


def generator(seed: int, stream: Stream, device: int, *more: int) -> np.random.Generator:
    """The generator of a key. Equal keys give equal draws; `more` holds the round in streams with one key per round."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, device, *more))))


def pair_number(one: int, other: int) -> int:
    """The number of a pair of devices, for streams of pairs. It does not depend on the size of the fleet."""
    low, high = min(one, other), max(one, other)
    return high * (high - 1) // 2 + low
