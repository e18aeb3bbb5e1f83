"""Minibatches keyed by (device, round): what a device trains on does not depend on when it is computed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Ints
from wayfare.streams import Stream, generator

# An image moves by up to so many pixels each way: random crops out of an image with a border of 4, as is usual.
SHIFT_PIXELS = 4


class Batches:
    """Sample numbers of every minibatch, drawn with replacement from the device's samples; how each is augmented."""

    def __init__(self, held: list[Ints], batch_size: int, rounds: int, seed: int, *, augment: bool = False) -> None:
        self.batch_size, self.augment = batch_size, augment
        self._held, self._rounds, self._seed = held, rounds, seed
        self._tables: dict[int, Ints] = {}
        self._crops: dict[int, NDArray[np.int8]] = {}

    def of(self, device: int, first_round: int, steps: int) -> Ints:
        """Sample numbers of the minibatches of some rounds (counted from 1), shape (steps, batch size)."""
        table = self._tables.get(device)
        if table is None:
            held = self._held[device]
            rng = generator(self._seed, Stream.MINIBATCH, device)
            # Row by row, so that a longer run begins with the same minibatches as a shorter one.
            table = held[rng.integers(0, len(held), size=(self._rounds, self.batch_size))]
            self._tables[device] = table
        return np.asarray(table[first_round - 1 : first_round - 1 + steps])

    def crops_of(self, device: int, first_round: int, steps: int) -> Ints | None:
        """How those samples are augmented, (steps, batch size, 3): pixels right, pixels down, mirrored; None: not."""
        if not self.augment:
            return None
        table = self._crops.get(device)
        if table is None:
            rng = generator(self._seed, Stream.AUGMENTATION, device)
            least, beyond = (-SHIFT_PIXELS, -SHIFT_PIXELS, 0), (SHIFT_PIXELS + 1, SHIFT_PIXELS + 1, 2)
            # Small numbers in few bytes: the table of a fleet stays in memory.
            table = rng.integers(least, beyond, size=(self._rounds, self.batch_size, 3)).astype(np.int8)
            self._crops[device] = table
        return table[first_round - 1 : first_round - 1 + steps].astype(np.int64)
