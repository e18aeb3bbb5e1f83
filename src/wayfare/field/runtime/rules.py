"""Validation of uploads: the limits of a fleet, and consistency with the device's earlier uploads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.errors import WireError
from wayfare.codec.whole import MAX_WHOLE
from wayfare.field.runtime.messages import Chunk
from wayfare.sparsify import Sparse


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    largest_value: float = 1e4  # of an entry; a model with updates near this has diverged already
    clip_norm: float | None = None  # updates of larger norm are scaled down to it
    uploads_per_day: int | None = None  # of each device, unless an order has changed it
    budget_joules: float | None = None  # the most that a device can have spent

    def share(self, before_sq: float, norm_sq: float) -> float:
        """The factor of a chunk that keeps the whole update within the norm."""
        if self.clip_norm is None or before_sq + norm_sq <= self.clip_norm**2:
            return 1.0
        return math.sqrt(max(self.clip_norm**2 - before_sq, 0.0) / norm_sq)


@dataclass(slots=True)
class Latest:
    """What the server knows of a device and of its latest update."""

    number: int = 0
    open: bool = False
    norm_sq: float = 0.0
    spent_joules: float = 0.0
    name: str = ""
    delivered_s: float | None = None  # when its last chunk was recorded
    samples: int | None = None  # as the device reports it

    def is_open(self, number: int) -> bool:
        return self.open and number == self.number


class Bits:
    """A set of entries of a model, one bit each, which bounds the server's memory per device."""

    def __init__(self, entries: int) -> None:
        self._bits: NDArray[np.uint8] = np.zeros(-(-entries // 8), dtype=np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def any_of(self, indices: Ints) -> bool:
        return bool((self._bits.take(indices >> 3) & _bit_of(indices)).any())

    def add(self, indices: Ints) -> None:
        """Add indices that are not in the set yet."""
        self._count += len(indices)
        # New bits add up to their union, and NumPy adds several times as fast.
        np.add.at(self._bits, indices >> 3, _bit_of(indices))


def _bit_of(indices: Ints) -> NDArray[np.uint8]:
    # The three lowest bits of an index are in its lowest byte.
    bits: NDArray[np.uint8] = np.left_shift(np.uint8(1), indices.astype(np.uint8) & np.uint8(7))
    return bits


def check_chunk(chunk: Chunk, latest: Latest, limits: Limits, version: int) -> None:
    """Reject a chunk that contradicts the device's latest update, makes impossible claims, or exceeds the limits."""
    if chunk.update <= latest.number and not latest.is_open(chunk.update):
        raise WireError(f"update {chunk.update} is closed")
    if chunk.update > latest.number and latest.open:
        raise WireError(f"update {chunk.update} arrived while update {latest.number} is open")
    if chunk.base_version > version:
        raise WireError(f"base_version = {chunk.base_version}: must be at most {version}, the latest version")
    if chunk.spent_joules < latest.spent_joules:
        raise WireError(f"spent_joules = {chunk.spent_joules}: must not fall; it was {latest.spent_joules}")
    if limits.budget_joules is not None and chunk.spent_joules > limits.budget_joules:
        raise WireError(f"spent_joules = {chunk.spent_joules}: must be at most {limits.budget_joules}, the budget")
    if (largest := max(abs(float(end)) for end in chunk.entries.values.aminmax())) > limits.largest_value:
        raise WireError(f"an entry is {largest:g}: must be at most {limits.largest_value:g}")


def check_sums(chunk: Chunk, before: Iterable[Sparse], model: Tensor) -> None:
    """Reject a chunk of class statistics that would make a sum inexact, together with chunks not applied yet.

    Whole numbers below 2^24 add up exactly in single precision.
    """
    indices = chunk.entries.indices
    total = model.index_select(0, indices) - chunk.entries.values
    for others in before:
        # Overlaps of different devices: rare, and few chunks wait.
        dense = torch.zeros_like(model).index_add(0, others.indices, others.values)
        total = total - dense.index_select(0, indices)
    if float(total.abs().max()) >= MAX_WHOLE:
        raise WireError(f"update {chunk.update}: a sum would exceed {MAX_WHOLE} steps")


def check_rest(chunk: Chunk, others: Sequence[tuple[int, int, int]], taken: Bits | None, whole: int) -> None:
    """Reject a chunk that contradicts the others of its update, given by number, round and received round.

    ``whole`` is the required total number of entries, or 0 for any number.
    """
    if any(other != (chunk.chunks, chunk.round, chunk.received_round) for other in others):
        raise WireError(f"update {chunk.update}: its chunks disagree on their number or round")
    if taken is not None and taken.any_of(chunk.entries.indices.numpy()):
        raise WireError(f"update {chunk.update}: an entry appears twice")
    entries = len(chunk.entries) + (0 if taken is None else len(taken))
    if len(others) + 1 == chunk.chunks and entries < whole:
        raise WireError(f"update {chunk.update}: the model has {entries} entries, expected {whole}")
