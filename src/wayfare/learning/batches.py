"""Minibatches keyed by device and step number, so that a minibatch does not depend on when it is drawn.

A device takes `Descent.steps_per_round` steps per round, 1 by default. Steps are counted from 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Ints
from wayfare.errors import ScenarioError
from wayfare.streams import Stream, generator

_log = logging.getLogger("wayfare")

# Maximum shift of an image in each direction, equal to the usual random crops from an image with a border of 4.
SHIFT_PIXELS = 4
# Minibatches drawn at a time. A fleet of thousands keeps only this window of its minibatches in memory.
_WINDOW_STEPS = 256

_Draw: TypeAlias = Callable[[np.random.Generator, int], NDArray[np.integer]]


class Batches:
    """Sample numbers of every minibatch, drawn with replacement from the device's samples, and their augmentation."""

    def __init__(self, held: Sequence[Ints], batch_size: int, rounds: int, seed: int, *, augment: bool = False) -> None:
        self.batch_size, self.augment = batch_size, augment
        self._held, self._rounds, self._seed = held, rounds, seed
        self._windows: dict[tuple[Stream, int], _Window] = {}

    @property
    def devices(self) -> int:
        return len(self._held)

    def held(self, device: int) -> Ints:
        """The sample numbers of a device."""
        return self._held[device]

    def of(self, device: int, first_step: int, steps: int) -> Ints:
        """Sample numbers of the minibatches of `steps` steps, shape (steps, batch size)."""
        held = self._held[device]

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            # Indices into the device's samples, in the smallest integer type that holds them.
            return rng.integers(0, len(held), size=(count, self.batch_size)).astype(np.min_scalar_type(len(held)))

        return held.take(self._window(Stream.MINIBATCH, device, draw).rows(first_step, steps))

    def crops_of(self, device: int, first_step: int, steps: int) -> Ints | None:
        """The augmentation of those samples, (steps, batch size, 3): pixels right, pixels down, mirrored; or None."""
        if not self.augment:
            return None

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            least, beyond = (-SHIFT_PIXELS, -SHIFT_PIXELS, 0), (SHIFT_PIXELS + 1, SHIFT_PIXELS + 1, 2)
            return rng.integers(least, beyond, size=(count, self.batch_size, 3)).astype(np.int8)

        return self._window(Stream.AUGMENTATION, device, draw).rows(first_step, steps).astype(np.int64)

    def seeds_of(self, device: int, first_step: int, steps: int) -> list[int]:
        """The seed of random layers and losses in each of those steps."""

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            return rng.integers(2**63, size=count)

        return [int(seed) for seed in self._window(Stream.RANDOM_LAYERS, device, draw).rows(first_step, steps)]

    def _window(self, stream: Stream, device: int, draw: _Draw) -> _Window:
        key = stream, device
        if key not in self._windows:
            self._windows[key] = _Window(self._seed, stream, device, min(self._rounds, _WINDOW_STEPS), draw)
        return self._windows[key]


class GrowingBatches(Batches):
    """Minibatches of one device whose data set grows, each drawn by its own key (seed, device, step).

    A device that restarts after a million steps draws none of the earlier ones again.
    """

    def __init__(self, samples: int, batch_size: int, seed: int, device: int) -> None:
        super().__init__([np.arange(samples)], batch_size, 1, seed)
        self._samples, self._device = samples, device

    def of(self, device: int, first_step: int, steps: int) -> Ints:
        numbers = range(first_step, first_step + steps)
        return np.stack([self._rng(step).integers(0, self._samples, size=self.batch_size) for step in numbers])

    def seeds_of(self, device: int, first_step: int, steps: int) -> list[int]:
        return [int(self._rng(step, 1).integers(2**63)) for step in range(first_step, first_step + steps)]

    def _rng(self, step: int, *use: int) -> np.random.Generator:
        return generator(self._seed, Stream.FIELD_MINIBATCH, self._device, step, *use)


def check_batch_size(batch_size: int, held: Sequence[Ints], samples: int) -> None:
    """Raise ScenarioError for a minibatch larger than the training set; warn if no device holds as many samples.

    Minibatches are drawn with replacement, so a device with few samples can still train. Repeated samples in a
    minibatch only cost time.
    """
    if batch_size > samples:
        rule = f"must not exceed the {samples:,} training samples"
        raise ScenarioError("learning.batch_size", batch_size, rule)
    most = max(map(len, held))
    if batch_size > most:
        _warn_of_repetition(batch_size, most)


@lru_cache
def _warn_of_repetition(batch_size: int, most: int) -> None:
    _log.warning(
        "learning.batch_size = %d: no device holds more than %d samples, so every minibatch repeats some",
        batch_size,
        most,
    )


class _Window:
    """A window of one device's draws. Draws are made step by step, so that a longer run begins like a shorter one."""

    def __init__(self, seed: int, stream: Stream, device: int, width: int, draw: _Draw) -> None:
        self._key, self._width, self._draw = (seed, stream, device), width, draw
        self._begin()

    def _begin(self) -> None:
        self._rng = generator(*self._key)
        self._first_step, self._drawn = 1, self._draw(self._rng, self._width)

    def rows(self, first_step: int, steps: int) -> NDArray[np.integer]:
        """The draws of some steps. Earlier steps than the window are drawn again from the start."""
        if first_step < self._first_step:
            self._begin()
        while first_step + steps > self._first_step + len(self._drawn):
            # A run asks in ascending order, so earlier steps can be dropped.
            kept = self._drawn[max(first_step - self._first_step, 0) :]
            self._first_step += len(self._drawn) - len(kept)
            self._drawn = np.concatenate([kept, self._draw(self._rng, self._width)])
        offset = first_step - self._first_step
        return self._drawn[offset : offset + steps]
