"""The only source of chance: a generator for every (seed, stream, device), and for every round where it must be.

Nothing else in Wayfare draws random numbers, so a world depends on its seed alone: never on the scheme,
on the size of the fleet, or on the order in which its parts are drawn.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np

FLEET = 0
"""The device of a stream that belongs to the fleet as a whole."""


@unique
class Stream(IntEnum):
    """One number for each use of chance. Numbers are never reused: they are part of what a seed means."""

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


def generator(seed: int, stream: Stream, device: int, *more: int) -> np.random.Generator:
    """Same key, same draws, whatever the method or the size of the fleet. Some streams have a key for every round."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, device, *more))))


def pair_number(one: int, other: int) -> int:
    """The number of a pair of devices, where a stream belongs to pairs: the same in a fleet of any size."""
    low, high = min(one, other), max(one, other)
    return high * (high - 1) // 2 + low
