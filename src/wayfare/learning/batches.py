"""Minibatches keyed by device and number: what a device trains on does not depend on when it is computed.

A device takes one step in every round, or `Descent.steps_per_round` of them: the number counts its steps from 1.
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

# An image moves by up to so many pixels each way: random crops out of an image with a border of 4, as is usual.
SHIFT_PIXELS = 4
# Minibatches drawn at a time: a fleet of thousands holds a window of its minibatches, never all of them.
_WINDOW_STEPS = 256

_Draw: TypeAlias = Callable[[np.random.Generator, int], NDArray[np.integer]]


class Batches:
    """Sample numbers of every minibatch, drawn with replacement from the device's samples; how each is augmented."""

    def __init__(self, held: Sequence[Ints], batch_size: int, rounds: int, seed: int, *, augment: bool = False) -> None:
        self.batch_size, self.augment = batch_size, augment
        self._held, self._rounds, self._seed = held, rounds, seed
        self._windows: dict[tuple[Stream, int], _Window] = {}

    def of(self, device: int, first_step: int, steps: int) -> Ints:
        """Sample numbers of some minibatches (counted from 1), shape (steps, batch size)."""
        held = self._held[device]
        # Places among the device's samples in as few bytes as count them.
        narrow = np.min_scalar_type(len(held))

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            return rng.integers(0, len(held), size=(count, self.batch_size)).astype(narrow)

        return np.asarray(held[self._window(Stream.MINIBATCH, device, draw).rows(first_step, steps)])

    def crops_of(self, device: int, first_step: int, steps: int) -> Ints | None:
        """How those samples are augmented, (steps, batch size, 3): pixels right, pixels down, mirrored; None: not."""
        if not self.augment:
            return None

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            least, beyond = (-SHIFT_PIXELS, -SHIFT_PIXELS, 0), (SHIFT_PIXELS + 1, SHIFT_PIXELS + 1, 2)
            return rng.integers(least, beyond, size=(count, self.batch_size, 3)).astype(np.int8)

        return self._window(Stream.AUGMENTATION, device, draw).rows(first_step, steps).astype(np.int64)

    def seeds_of(self, device: int, first_step: int, steps: int) -> list[int]:
        """The seed of everything random in the network and the loss, for each of those steps."""

        def draw(rng: np.random.Generator, count: int) -> NDArray[np.integer]:
            return rng.integers(2**63, size=count)

        return [int(seed) for seed in self._window(Stream.RANDOM_LAYERS, device, draw).rows(first_step, steps)]

    def _window(self, stream: Stream, device: int, draw: _Draw) -> _Window:
        key = stream, device
        if key not in self._windows:
            self._windows[key] = _Window(self._seed, stream, device, min(self._rounds, _WINDOW_STEPS), draw)
        return self._windows[key]


def check_batch_size(batch_size: int, held: Sequence[Ints], samples: int) -> None:
    """Raise ScenarioError for a minibatch larger than the training set; warn if no device holds as many samples.

    Minibatches are drawn with replacement, so a device with few samples trains as well as its data allow. Samples that
    appear several times in a minibatch add nothing but time.
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
    """Some steps of one device's draws. They are made step by step, so a longer run begins like a shorter one."""

    def __init__(self, seed: int, stream: Stream, device: int, width: int, draw: _Draw) -> None:
        self._key, self._width, self._draw = (seed, stream, device), width, draw
        self._begin()

    def _begin(self) -> None:
        self._rng = generator(*self._key)
        self._first_step, self._drawn = 1, self._draw(self._rng, self._width)

    def rows(self, first_step: int, steps: int) -> NDArray[np.integer]:
        """The draws of some steps; those of earlier steps are made again when asked for."""
        if first_step < self._first_step:
            self._begin()
        while first_step + steps > self._first_step + len(self._drawn):
            # Steps before the one asked for are done with, in the order in which a run asks.
            kept = self._drawn[max(first_step - self._first_step, 0) :]
            self._first_step += len(self._drawn) - len(kept)
            self._drawn = np.concatenate([kept, self._draw(self._rng, self._width)])
        offset = first_step - self._first_step
        return self._drawn[offset : offset + steps]
