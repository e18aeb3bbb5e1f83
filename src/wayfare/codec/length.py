"""The length of a message, and the values that will arrive, without writing it: for simulated uploads.

The symbols are those that `encode` writes. They are counted where the update is, so only the counts leave a GPU. The
length of an entropy code depends slightly on the order of symbols; this is the maximum over all orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.entropy import coded_bytes, trimmed
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.indices import BASE
from wayfare.codec.steps import BLOCK, WHOLE, ValueBits
from wayfare.codec.values import quantise
from wayfare.codec.whole import whole_bytes
from wayfare.sparsify import Sparse, gpu
from wayfare.waiting import Arriving, Steps, at_once, fetched

_REMAINDERS = np.arange(BASE)


@dataclass(frozen=True, slots=True)
class Measured:
    """The bits of a message, and its entries as the receiver would decode them."""

    bits: int
    delivered: Sparse
    value_bits: ValueBits = 32


@dataclass(frozen=True, slots=True)
class Sized:
    """The bits of a message, before its values are decoded."""

    bits: int
    decoded: Callable[[], Measured]


def measure(kept: Sparse, parameters: int, value_bits: ValueBits, chosen: int | None = None) -> Measured:
    """Measure the message of kept parameters and exact statistics that `encode` would write.

    No message is longer than its measured length. ``chosen`` is the number of kept parameters, if the caller knows it.
    """
    return at_once(size_in_steps(kept, parameters, value_bits, chosen)).decoded()


def size_in_steps(kept: Sparse, parameters: int, value_bits: ValueBits, chosen: int | None = None) -> Steps[Sized]:
    """As `measure`, for messages of which not all are sent."""
    if chosen is None:
        chosen = int(torch.searchsorted(kept.indices, parameters))
    read = _counted(kept, chosen, value_bits, with_gaps=0 < chosen < parameters)
    yield read.is_here
    of_codes, of_gaps, decode = read()
    if value_bits == WHOLE:
        of_values = whole_bytes(kept.values[:chosen].float())
    else:
        of_values = _value_bytes(of_codes, chosen, value_bits)
    bits = 8 * (HEADER_BYTES + _index_bytes(of_gaps, chosen) + of_values + 4 * (len(kept) - chosen))
    return Sized(bits, lambda: Measured(bits, Sparse(kept.indices, decode()), value_bits))


def _counted(
    kept: Sparse, chosen: int, value_bits: ValueBits, *, with_gaps: bool
) -> Arriving[tuple[Ints, Ints, Callable[[], Tensor]]]:
    """Start to read the counts of codes and of gaps, empty if there are none, and the values that arrive."""
    if value_bits in (8, 4, 2) and chosen and gpu.has_kernels(kept.values):
        from wayfare.codec.gpu_kernels import counted

        return counted(kept.indices, kept.values, chosen, value_bits, with_gaps=with_gaps)
    indices, statistics = kept.indices[:chosen], kept.values[chosen:]
    codes, decode = _quantised(kept.values[:chosen].float(), value_bits)
    code_counts = _byte_counts(codes, 1 << value_bits) if len(codes) and value_bits <= 8 else indices[:0]
    gap_counts = _gap_counts(indices) if with_gaps else indices[:0]

    def decoded() -> Tensor:
        values = decode().to(statistics.dtype)
        return torch.cat([values, statistics]) if len(statistics) else values

    def read(counts: Ints) -> tuple[Ints, Ints, Callable[[], Tensor]]:
        return counts[: len(code_counts)], counts[len(code_counts) :], decoded

    # All counts leave a GPU in one transfer.
    return fetched(torch.cat([code_counts, gap_counts])).then(read)


def _quantised(values: Tensor, bits: ValueBits) -> tuple[Tensor, Callable[[], Tensor]]:
    """The codes of values, if they are quantised, and the values that arrive."""
    if bits in (32, WHOLE) or len(values) == 0:
        return values[:0], lambda: values
    _, codes, decode = quantise(values, bits)
    return codes, decode


def _gap_counts(indices: Tensor) -> Tensor:
    """The count of each remainder of the gaps between indices, then the first and the last index."""
    rests = indices.diff().sub_(1).remainder_(BASE).to(torch.uint8)
    return torch.cat([_byte_counts(rests, BASE), indices[:1], indices[-1:]])


def _byte_counts(symbols: Tensor, alphabet: int) -> Tensor:
    """The count of each of some bytes below ``alphabet``.

    On a GPU `bincount` reads the largest symbol back, and the host waits for it. Sorting bytes takes one pass.
    """
    if not _is_on_gpu(symbols):
        return torch.bincount(symbols, minlength=alphabet)
    all_symbols = torch.arange(alphabet, dtype=torch.uint8, device=symbols.device)
    up_to = torch.searchsorted(symbols.sort().values, all_symbols, right=True)
    return up_to.diff(prepend=up_to.new_zeros(1))


def _is_on_gpu(symbols: Tensor) -> bool:
    return symbols.device.type != "cpu"


def _index_bytes(counts: Ints, kept: int) -> int:
    """The bytes of the shortest encoding that `encode_indices` can choose."""
    if len(counts) == 0:
        return 0
    span = int(counts[-1] - counts[-2]) + 1
    if kept == span:
        return 0
    numbers = counts[:-1].copy()
    # The first index is the start of the span: a gap of 0.
    numbers[0] += 1
    # The symbols of long gaps: all skipped entries, less the remainders, in units of BASE.
    numbers[BASE] = (span - kept - int(numbers[:BASE] @ _REMAINDERS)) // BASE
    numbers = trimmed(numbers)
    return min(coded_bytes(numbers), int(numbers.sum()), (span + 7) // 8)


def _value_bytes(counts: Ints, kept: int, bits: ValueBits) -> int:
    if bits == 32 or kept == 0:
        return 4 * kept
    body = -(-kept * bits // 8)
    if len(counts):
        body = min(body, coded_bytes(trimmed(counts)))
    return 8 * -(-kept // BLOCK) + 1 + body
