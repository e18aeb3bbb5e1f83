"""Exact top-k: the k entries of largest magnitude, ties to the lower index, so that k is exact and runs repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.sparsify.places import first_places

_SAMPLE_EVERY = 64
_SAMPLED_FROM = 1 << 14


@dataclass(frozen=True, slots=True)
class Sparse:
    """Kept entries of a flat vector: indices in increasing order, and their values."""

    indices: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.indices)


def top_k(vector: Tensor, k: int) -> Sparse:
    """The k entries of largest magnitude (S in Algorithm 1)."""
    if k <= 0:
        return Sparse(torch.empty(0, dtype=torch.int64, device=vector.device), vector[:0].clone())
    if k >= len(vector):
        return Sparse(torch.arange(len(vector), device=vector.device), vector.clone())
    indices = _largest_by_threshold(vector, k) if vector.device.type == "cpu" else _largest_by_selection(vector, k)
    return Sparse(indices, vector.index_select(0, indices))


def _largest_by_threshold(vector: Tensor, k: int) -> Tensor:
    """On a processor: find the k-th largest magnitude, then keep what reaches it."""
    magnitude = vector.abs().numpy()
    threshold = kth_largest(magnitude, k)
    kept = np.flatnonzero(magnitude >= threshold)
    if len(kept) > k:
        # More entries equal the threshold than there is room for: the first ones stay.
        ties = np.flatnonzero(magnitude[kept] == threshold)
        kept = np.delete(kept, ties[len(ties) - (len(kept) - k) :])
    return torch.from_numpy(kept)


def _largest_by_selection(vector: Tensor, k: int) -> Tensor:
    """On a GPU: selection gives the k-th largest magnitude; which ties it would take is chance, so they are taken here.

    A selection is a hundred times faster there than `kthvalue` (measured in benchmarks/topk.py). How many entries equal
    the k-th largest is never asked for: the processor goes on without waiting.
    """
    magnitude = vector.abs()
    threshold = magnitude.topk(k, sorted=False).values.amin()
    above, equal = magnitude > threshold, magnitude == threshold
    # Above the threshold all stay, and of those that equal it the first ones.
    room = k - above.sum()
    kept = above | (equal & (equal.cumsum(0, dtype=torch.int32) <= room))
    return first_places(kept, k)


def kth_largest(values: NDArray[np.floating], k: int) -> np.floating:
    """The k-th largest value, exactly: a sample brackets it, and only what lies in the bracket is searched.

    Passes that compare are several times faster than a pass that selects (measured in benchmarks/topk.py).
    """
    if len(values) >= _SAMPLED_FROM:
        sample = values[::_SAMPLE_EVERY]
        rank = len(sample) * (1 - k / len(values))
        # Five standard deviations of the rank of a quantile in a sample: it falls outside about once in a million.
        margin = 5 * np.sqrt(rank * (1 - rank / len(sample))) + 1
        places = np.clip([rank - margin, rank + margin], 0, len(sample) - 1).astype(np.int64)
        low, high = np.partition(sample, places)[places]
        above = int(np.count_nonzero(values > high))
        middle = values[(values >= low) & (values <= high)]
        if above < k <= above + len(middle):
            return _select(middle, k - above)
    return _select(values, k)


def _select(values: NDArray[np.floating], k: int) -> np.floating:
    cut = len(values) - k
    return cast(np.floating, np.partition(values, cut)[cut])
