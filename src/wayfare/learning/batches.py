"""Minibatches keyed by (device, round): what a device trains on does not depend on when it is computed."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Ints
from wayfare.streams import Stream, generator


class Batches:
    """Sample numbers of every minibatch, drawn with replacement from the device's samples."""

    def __init__(self, held: list[Ints], batch_size: int, rounds: int, seed: int) -> None:
        self.batch_size = batch_size
        self._held, self._rounds, self._seed = held, rounds, seed
        self._tables: dict[int, Ints] = {}

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
