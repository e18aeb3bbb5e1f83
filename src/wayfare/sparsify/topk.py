"""Exact top-k: the k entries of largest magnitude; ties go to the lower index."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.sparsify import gpu
from wayfare.sparsify.mask_indices import first_indices

_SAMPLE_EVERY = 64
_SAMPLED_FROM = 1 << 14


@dataclass(frozen=True, slots=True)
class Sparse:
    """Kept entries of a flat vector: indices in increasing order, and their values."""

    indices: Tensor
    values: Tensor
    # Entries of memory after both that nothing else uses. A copy with other values has none.
    room: int = field(default=0, init=False, compare=False, repr=False)

    @staticmethod
    def with_room(indices: Tensor, values: Tensor, room: int) -> Sparse:
        """Entries whose memory has room for more."""
        kept = Sparse(indices, values)
        object.__setattr__(kept, "room", room)
        return kept

    def __len__(self) -> int:
        # `len` of a tensor takes four times as long.
        return self.indices.shape[0]


def top_k(vector: Tensor, k: int) -> Sparse:
    """The k entries of largest magnitude (S in Algorithm 1)."""
    if k <= 0:
        return Sparse(torch.empty(0, dtype=torch.int64, device=vector.device), vector[:0].clone())
    if k >= len(vector):
        return Sparse(all_indices(len(vector), vector.device), vector.clone())
    if gpu.has_kernels(vector):
        from wayfare.sparsify.gpu_largest import ROOM_AFTER, largest

        return Sparse.with_room(*largest(vector, k), ROOM_AFTER)
    indices = _largest_by_threshold(vector, k) if vector.device.type == "cpu" else _largest_by_selection(vector, k)
    return Sparse(indices, vector.index_select(0, indices))


@lru_cache(maxsize=2)
def all_indices(entries: int, device: torch.device) -> Tensor:
    """0, 1, 2, ...: shared by all whole vectors of a length. Do not change them."""
    return torch.arange(entries, device=device)


def _largest_by_threshold(vector: Tensor, k: int) -> Tensor:
    """On a CPU: find the k-th largest magnitude, then keep all entries at or above it."""
    magnitude = vector.abs().numpy()
    threshold = kth_largest(magnitude, k)
    kept = np.flatnonzero(magnitude >= threshold)
    if len(kept) > k:
        # Of the entries equal to the threshold, keep the first ones.
        ties = np.flatnonzero(magnitude[kept] == threshold)
        kept = np.delete(kept, ties[len(ties) - (len(kept) - k) :])
    return torch.from_numpy(kept)


def _largest_by_selection(vector: Tensor, k: int) -> Tensor:
    """Without kernels: `topk` gives the k-th largest magnitude. Its choice among ties is random; they are broken here.

    `topk` is a hundred times faster there than `kthvalue` (measured in benchmarks/topk.py). The number of ties is
    never read back, so the CPU does not wait.
    """
    magnitude = vector.abs()
    threshold = magnitude.topk(k, sorted=False).values.amin()
    above, equal = magnitude > threshold, magnitude == threshold
    # Keep all entries above the threshold and the first ones equal to it.
    room = k - above.sum()
    kept = above | (equal & (equal.cumsum(0, dtype=torch.int32) <= room))
    return first_indices(kept, k)


def kth_largest(values: NDArray[np.floating], k: int) -> np.floating:
    """The exact k-th largest of values that are at least 0: a sample brackets it, and only the bracket is searched.

    Comparing all values is several times faster than partitioning them (measured in benchmarks/topk.py).
    """
    if len(values) >= _SAMPLED_FROM:
        sample = values[::_SAMPLE_EVERY]
        rank = len(sample) * (1 - k / len(values))
        # Five standard deviations of the rank of a quantile in a sample; it lies outside about once in a million.
        margin = 5 * np.sqrt(rank * (1 - rank / len(sample))) + 1
        ends = np.clip([rank - margin, rank + margin], 0, len(sample) - 1).astype(np.int64)
        low, high = np.partition(sample, ends)[ends]
        above = int(np.count_nonzero(values > high))
        middle = values[(values >= low) & (values <= high)]
        if above < k <= above + len(middle):
            if low == 0:
                # Partitioning takes fifteen times as long if most values are equal.
                middle = middle[middle > 0]
            return _select(middle, k - above) if k - above <= len(middle) else low
    return _select(values, k)


def _select(values: NDArray[np.floating], k: int) -> np.floating:
    cut = len(values) - k
    return cast(np.floating, np.partition(values, cut)[cut])
