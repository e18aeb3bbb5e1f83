"""What an upload may be: the limits of a fleet, and what fits the device it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Ints
from wayfare.codec.errors import WireError
from wayfare.field.runtime.messages import Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    largest_value: float = 1e4  # of an entry; a model whose updates come near is broken already
    clip_norm: float | None = None  # |update| is scaled down to this
    budget_joules: float | None = None  # more than that no device can have spent

    def share(self, before_sq: float, norm_sq: float) -> float:
        """The share of a chunk that is applied, so that the whole update stays within the norm."""
        if self.clip_norm is None or before_sq + norm_sq <= self.clip_norm**2:
            return 1.0
        return math.sqrt(max(self.clip_norm**2 - before_sq, 0.0) / norm_sq)


@dataclass(slots=True)
class Latest:
    number: int = 0
    open: bool = False
    norm_sq: float = 0.0
    spent_joules: float = 0.0

    def is_open(self, number: int) -> bool:
        return self.open and number == self.number


class Bits:
    """A set of entries of a model, in a bit for each: what a device may take of the server's memory."""

    def __init__(self, entries: int) -> None:
        self._bits: NDArray[np.uint8] = np.zeros(-(-entries // 8), dtype=np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def any_of(self, indices: Ints) -> bool:
        return bool(((self._bits[indices >> 3] >> (indices & 7)) & 1).any())

    def add(self, indices: Ints) -> None:
        """Put some in that are not in it."""
        self._count += len(indices)
        np.bitwise_or.at(self._bits, indices >> 3, (1 << (indices & 7)).astype(np.uint8))


def check_chunk(chunk: Chunk, latest: Latest, limits: Limits, version: int) -> None:
    """Refuse what cannot come after a device's latest update, claims what cannot be, or is beyond the limits."""
    if chunk.update <= latest.number and not latest.is_open(chunk.update):
        raise WireError(f"update {chunk.update} is closed")
    if chunk.update > latest.number and latest.open:
        raise WireError(f"update {chunk.update} came while update {latest.number} is open")
    if chunk.base_version > version:
        raise WireError(f"builds on version {chunk.base_version}, the latest is {version}")
    if chunk.spent_joules < latest.spent_joules:
        raise WireError(f"spent_joules = {chunk.spent_joules}: was {latest.spent_joules} before")
    if limits.budget_joules is not None and chunk.spent_joules > limits.budget_joules:
        raise WireError(f"spent_joules = {chunk.spent_joules}: above the budget of {limits.budget_joules}")
    if float(chunk.entries.values.abs().max()) > limits.largest_value:
        raise WireError(f"an entry above {limits.largest_value:g}")


def check_rest(chunk: Chunk, others: Sequence[tuple[int, int, int]], taken: Bits | None, whole: int) -> None:
    """Refuse what does not fit the other chunks of its update, of which number, round and received round are given.

    ``whole`` is how many entries all chunks together must have, if any number is not right.
    """
    if any(other != (chunk.chunks, chunk.round, chunk.received_round) for other in others):
        raise WireError(f"update {chunk.update}: its chunks do not agree on their number or round")
    if taken is not None and taken.any_of(chunk.entries.indices.numpy()):
        raise WireError(f"update {chunk.update}: an entry came twice")
    entries = len(chunk.entries) + (0 if taken is None else len(taken))
    if len(others) + 1 == chunk.chunks and entries < whole:
        raise WireError(f"update {chunk.update}: a model of {entries} entries, it has {whole}")
