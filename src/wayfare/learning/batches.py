"""Minibatches keyed by (device, round): what a device trains on does not depend on when it is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Ints
from wayfare.streams import Stream, generator

# An image moves by up to so many pixels each way: random crops out of an image with a border of 4, as is usual.
SHIFT_PIXELS = 4
# Rounds drawn at a time: a fleet of thousands holds a window of its minibatches, never all of them.
_WINDOW_ROUNDS = 256

_Draw: TypeAlias = Callable[[np.random.Generator, int], NDArray[np.integer]]


class Batches:
    """Sample numbers of every minibatch, drawn with replacement from the device's samples; how each is augmented."""

    def __init__(self, held: Sequence[Ints], batch_size: int, rounds: int, seed: int, *, augment: bool = False) -> None:
        self.batch_size, self.augment = batch_size, augment
        self._held, self._rounds, self._seed = held, rounds, seed
        self._windows: dict[tuple[Stream, int], _Window] = {}

    def of(self, device: int, first_round: int, steps: int) -> Ints:
        """Sample numbers of the minibatches of some rounds (counted from 1), shape (steps, batch size)."""
        held = self._held[device]
        # Places among the device's samples in as few bytes as count them.
        narrow = np.min_scalar_type(len(held))

        def draw(rng: np.random.Generator, rounds: int) -> NDArray[np.integer]:
            return rng.integers(0, len(held), size=(rounds, self.batch_size)).astype(narrow)

        return np.asarray(held[self._window(Stream.MINIBATCH, device, draw).rows(first_round, steps)])

    def crops_of(self, device: int, first_round: int, steps: int) -> Ints | None:
        """How those samples are augmented, (steps, batch size, 3): pixels right, pixels down, mirrored; None: not."""
        if not self.augment:
            return None

        def draw(rng: np.random.Generator, rounds: int) -> NDArray[np.integer]:
            least, beyond = (-SHIFT_PIXELS, -SHIFT_PIXELS, 0), (SHIFT_PIXELS + 1, SHIFT_PIXELS + 1, 2)
            return rng.integers(least, beyond, size=(rounds, self.batch_size, 3)).astype(np.int8)

        return self._window(Stream.AUGMENTATION, device, draw).rows(first_round, steps).astype(np.int64)

    def _window(self, stream: Stream, device: int, draw: _Draw) -> _Window:
        key = stream, device
        if key not in self._windows:
            self._windows[key] = _Window(self._seed, stream, device, min(self._rounds, _WINDOW_ROUNDS), draw)
        return self._windows[key]


class _Window:
    """Some rounds of one device's draws. They are made round by round, so a longer run begins like a shorter one."""

    def __init__(self, seed: int, stream: Stream, device: int, width: int, draw: _Draw) -> None:
        self._key, self._width, self._draw = (seed, stream, device), width, draw
        self._begin()

    def _begin(self) -> None:
        self._rng = generator(*self._key)
        self._first_round, self._drawn = 1, self._draw(self._rng, self._width)

    def rows(self, first_round: int, steps: int) -> NDArray[np.integer]:
        """The draws of some rounds; those of earlier rounds are made again when asked for."""
        if first_round < self._first_round:
            self._begin()
        while first_round + steps > self._first_round + len(self._drawn):
            # Rounds before the one asked for are done with, in the order in which a run asks.
            kept = self._drawn[max(first_round - self._first_round, 0) :]
            self._first_round += len(self._drawn) - len(kept)
            self._drawn = np.concatenate([kept, self._draw(self._rng, self._width)])
        offset = first_round - self._first_round
        return self._drawn[offset : offset + steps]
