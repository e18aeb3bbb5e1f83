"""How long a message will be, and what will arrive, without writing it: for runs that never send a byte.

The symbols are the very ones that `encode` writes, counted where the update lies; only their counts leave a GPU. An
entropy coder takes their cross-entropy under the table of frequencies it sends, to within a word or two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.entropy import coded_bytes
from wayfare.codec.indices import BASE
from wayfare.codec.values import BLOCK, ValueBits, quantise, restore
from wayfare.codec.wire import HEADER_BYTES
from wayfare.sparsify import Sparse


@dataclass(frozen=True, slots=True)
class Measured:
    """What a message would cost, and the entries as the receiver would have them."""

    bits: int
    delivered: Sparse


def measure(kept: Sparse, parameters: int, value_bits: ValueBits) -> Measured:
    """The message of kept parameters, and of all that lies behind the parameters as it is, as `encode` would write it.

    Lengths are those of `encode` to a few bytes.
    """
    chosen = len(kept)
    if chosen and int(kept.indices[-1]) >= parameters:
        chosen = int(torch.searchsorted(kept.indices, parameters))
    values, value_bytes = _values(kept.values[:chosen], value_bits)
    statistics = kept.values[chosen:]
    length = HEADER_BYTES + _index_bytes(kept.indices[:chosen]) + value_bytes + 4 * len(statistics)
    return Measured(8 * length, Sparse(kept.indices, torch.cat([values.to(statistics.dtype), statistics])))


def _index_bytes(indices: Tensor) -> int:
    """The shortest of the ways in which `encode_indices` may write them, from the first to the last."""
    if len(indices) == 0:
        return 0
    places = int(indices[-1] - indices[0]) + 1
    if len(indices) == places:
        return 0
    gaps = indices.diff(prepend=indices[:1] - 1) - 1
    whole = gaps.div(BASE, rounding_mode="floor")
    counts = torch.bincount(gaps - BASE * whole, minlength=BASE + 1)
    counts[BASE] = whole.sum()
    numbers = _trimmed(counts)
    return min(coded_bytes(numbers), int(numbers.sum()), (places + 7) // 8)


def _values(values: Tensor, bits: ValueBits) -> tuple[Tensor, int]:
    """The values that arrive, and the bytes they take."""
    single = values.float()
    if bits == 32 or len(values) == 0:
        return single, 4 * len(values)
    scales, codes = quantise(single, bits)
    body = -(-len(values) * bits // 8)
    if bits <= 8:
        body = min(body, coded_bytes(_trimmed(torch.bincount(codes))))
    return restore(scales, codes, bits), 8 * -(-len(values) // BLOCK) + 1 + body


def _trimmed(counts: Tensor) -> Ints:
    """Counts up to the last symbol that occurs: the alphabet of the encoder ends there."""
    numbers: Ints = counts.cpu().numpy()
    return np.trim_zeros(numbers, "b")
