"""A Triton kernel that quantises the values of a message on a GPU and counts its symbols, in one pass.

Its arithmetic is that of `values`, which is exact, so codes and decoded values are equal in every bit. Counts are
integers, so they do not depend on the order of programs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.indices import BASE
from wayfare.codec.steps import BLOCK, OCTAVES, ValueBits
from wayfare.sparsify.gpu import pieces
from wayfare.sparsify.launches import Launches, kind
from wayfare.waiting import Arriving, fetched

# Bytes have this many values. Counts of codes come first, then those of gaps, then the first and the last index.
_BINS = 256
# Blocks per program.
_STEPS = 8


def counted(
    indices: Tensor, values: Tensor, chosen: int, bits: ValueBits, *, with_gaps: bool
) -> Arriving[tuple[Ints, Ints, Callable[[], Tensor]]]:
    """Quantise the first ``chosen`` values, at least one, with 8, 4 or 2 bits, and count as `length` does.

    The result reads the counts of codes; those of remainders of gaps, followed by the first and the last index, or
    nothing; and the values that arrive, with those after the first ``chosen`` unchanged.
    """
    counts = torch.zeros(2 * _BINS + 2, dtype=torch.int32, device=values.device)
    restored = torch.empty_like(values)
    launch, entries = _launches(bits, with_gaps), values.numel()
    with torch.cuda.device_of(values):
        grid = pieces(entries, BLOCK * _STEPS), 1, 1
        launch(kind(indices, values), grid, indices, values, restored, counts, chosen, entries)

    def read(arrived: NDArray[Any]) -> tuple[Ints, Ints, Callable[[], Tensor]]:
        found: Ints = arrived.astype(np.int64)
        of_gaps = np.concatenate([found[_BINS : _BINS + BASE], found[2 * _BINS :]]) if with_gaps else found[:0]
        return found[: 1 << bits], of_gaps, lambda: restored

    return fetched(counts).then(read)


@cache
def _launches(bits: ValueBits, with_gaps: bool) -> Launches:
    constants = {"steps": 1 << (bits - 1), "octaves": OCTAVES, "base": BASE, "bins": _BINS, "block": BLOCK}
    # Versions of Triton have different defaults. Products are exact, so fusing them with sums changes nothing.
    return Launches(_count, {**constants, "blocks": _STEPS, "with_gaps": with_gaps}, {"enable_fp_fusion": True})


# One compilation serves all sizes.
@triton.jit(do_not_specialize=["chosen", "entries"])  # type: ignore[untyped-decorator]
def _count(
    indices: tl.tensor,
    values: tl.tensor,
    restored: tl.tensor,
    counts: tl.tensor,
    chosen: tl.tensor,
    entries: tl.tensor,
    steps: tl.constexpr,
    octaves: tl.constexpr,
    base: tl.constexpr,
    bins: tl.constexpr,
    block: tl.constexpr,
    blocks: tl.constexpr,
    with_gaps: tl.constexpr,
) -> None:
    place = tl.program_id(0) * (block * blocks) + tl.arange(0, block)
    of_codes, of_gaps = tl.zeros((bins,), dtype=tl.int32), tl.zeros((bins,), dtype=tl.int32)
    for _block in range(0, blocks):
        inside = place < chosen
        value = tl.load(values + place, mask=place < entries, other=0.0)
        whole = value.to(tl.int32, bitcast=True)
        magnitude = tl.where(inside, whole & 0x7FFFFFFF, 0)
        largest = tl.max(magnitude, 0)
        smallest = tl.min(tl.where(inside, magnitude, largest), 0)
        # `lower_scale`
        low = tl.maximum(tl.maximum(smallest, largest - (octaves << 23)), 0)
        # `steps_of`: the factor is the next double above the quotient.
        span = (largest - low + 1).to(tl.float64)
        factor = ((steps / span).to(tl.int64, bitcast=True) + 1).to(tl.float64, bitcast=True)
        step = (tl.maximum(magnitude - low, 0).to(tl.float64) * factor).to(tl.int32)
        # `middles_of`
        part = span / (2 * steps)
        middle = (step.to(tl.float64) * (2 * part) + (part + low)).to(tl.int32)
        decoded = (middle | (whole & -0x80000000)).to(tl.float32, bitcast=True)
        tl.store(restored + place, tl.where(inside, decoded, value), mask=place < entries)
        # Values and mask of a histogram must have one layout on a GPU: tiles of two axes, reshaped, do not.
        of_codes += tl.histogram(step + tl.where(whole < 0, steps, 0), bins, mask=inside)
        if with_gaps:
            has_next = place + 1 < chosen
            here = tl.load(indices + place, mask=inside, other=0)
            gap = (tl.load(indices + place + 1, mask=has_next, other=0) - here - 1).to(tl.int32)
            of_gaps += tl.histogram(tl.where(has_next, gap, 0) % base, bins, mask=has_next)
        place += block
    bin_ = tl.arange(0, bins)
    tl.atomic_add(counts + bin_, of_codes, mask=of_codes > 0, sem="relaxed")
    if with_gaps:
        tl.atomic_add(counts + bins + bin_, of_gaps, mask=of_gaps > 0, sem="relaxed")
        if tl.program_id(0) == 0:
            tl.store(counts + 2 * bins, tl.load(indices).to(tl.int32))
            tl.store(counts + 2 * bins + 1, tl.load(indices + chosen - 1).to(tl.int32))
