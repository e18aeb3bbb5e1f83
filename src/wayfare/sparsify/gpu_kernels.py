"""Triton kernels for vectors on a GPU: the largest entries, the tails of segments, and subtraction of some entries.

Counts are integers and indices are distinct, so results do not depend on the order of programs. They equal those of
`topk`, `spectrum` and `memory` in every bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# The bits of a magnitude, read as an integer, are found by digits from the highest on.
_DIGITS, _BINS = 4, 256
_BLOCK = 1024
# Entries that a program counts at a time, which takes as long as counting a few, and the number of times.
_COUNTED, _STEPS, _FEW = 4096, 2, 64
# Magnitudes whose ranks a program finds.
_RANKED = 64
# Entries per program where kept ones are written in order.
_WRITTEN = 4096
# Versions of Triton have different defaults. Nothing here is rounded.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}


def largest(vector: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the k entries of largest magnitude, 0 < k < len(vector); ties go to the lower index."""
    entries, blocks = len(vector), triton.cdiv(len(vector), _WRITTEN)
    found = torch.zeros(_DIGITS * _BINS, dtype=torch.int32, device=vector.device)
    in_blocks = torch.empty(2 * blocks, dtype=torch.int32, device=vector.device)
    indices, values = torch.empty(k, dtype=torch.int64, device=vector.device), vector.new_empty(k)
    with torch.cuda.device_of(vector):
        for digit in range(_DIGITS):
            _count_digits[(triton.cdiv(entries, _COUNTED * _STEPS),)](
                vector, found, entries, k, digit, bins=_BINS, block=_COUNTED, steps=_STEPS, few=_FEW, **_OPTIONS
            )
        _count_kept[(blocks,)](
            vector,
            found,
            in_blocks,
            entries,
            k,
            bins=_BINS,
            digits=_DIGITS,
            block=_WRITTEN,
            **_OPTIONS,
        )
        _write_kept[(blocks,)](
            vector,
            found,
            in_blocks,
            indices,
            values,
            entries,
            k,
            bins=_BINS,
            digits=_DIGITS,
            block=_WRITTEN,
            at_once=_BLOCK,
            **_OPTIONS,
        )
    return indices, values


def sorted_samples(rows: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th magnitude of each segment (rows), in rising order."""
    segments, length = rows.shape
    count = triton.cdiv(length, stride)
    samples = rows.new_empty(segments, count)
    with torch.cuda.device_of(rows):
        _sort_samples[(segments, triton.cdiv(count, _RANKED))](
            rows, samples, stride, length, count, block=_RANKED, **_OPTIONS
        )
    return samples


def beyond(rows: Tensor, bounds: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """The magnitudes of segments (rows) above the bound of each, in rising order, and their numbers.

    Nothing is defined beyond ``room`` magnitudes; if there are more, all of them are undefined. Numbers are floats, and
    exact up to 2^24.
    """
    segments, length = rows.shape
    blocks = triton.cdiv(length, _WRITTEN)
    in_blocks = torch.empty(segments * blocks, dtype=torch.int32, device=rows.device)
    found, tails, numbers = rows.new_empty(room), rows.new_empty(room), rows.new_empty(segments)
    with torch.cuda.device_of(rows):
        _count_beyond[(segments, blocks)](rows, bounds, in_blocks, bounds.stride(0), length, block=_WRITTEN, **_OPTIONS)
        _write_beyond[(segments, blocks)](
            rows,
            bounds,
            in_blocks,
            found,
            numbers,
            bounds.stride(0),
            length,
            room,
            block=_WRITTEN,
            at_once=_BLOCK,
            **_OPTIONS,
        )
        _sort_tails[(triton.cdiv(room, _RANKED), segments)](found, numbers, tails, room, block=_RANKED, **_OPTIONS)
    return tails, numbers


def subtract_at(vector: Tensor, indices: Tensor, values: Tensor) -> None:
    """vector[indices] -= values, in place; indices are distinct."""
    with torch.cuda.device_of(vector):
        _subtract_at[(triton.cdiv(len(indices), _BLOCK),)](
            vector, indices, values, len(indices), block=_BLOCK, **_OPTIONS
        )


@triton.jit  # type: ignore[untyped-decorator]
def _bound(found: tl.tensor, k: tl.tensor, digits: tl.tensor, bins: tl.constexpr) -> tl.tensor:
    """The first digits of the k-th largest magnitude, and how many entries with these digits belong to the k."""
    prefix, left = k * 0, k
    bin_ = tl.arange(0, bins)
    for digit in range(0, digits):
        count = tl.load(found + digit * bins + bin_)
        # The highest digit that leaves at least as many entries as are sought.
        chosen = tl.sum((tl.cumsum(count, 0, reverse=True) >= left).to(tl.int32), 0) - 1
        left -= tl.sum(tl.where(bin_ > chosen, count, 0), 0)
        prefix = prefix * bins + chosen
    return prefix, left


# One compilation serves all sizes.
@triton.jit(do_not_specialize=["entries", "k", "digit"])  # type: ignore[untyped-decorator]
def _count_digits(
    vector: tl.tensor,
    found: tl.tensor,
    entries: tl.tensor,
    k: tl.tensor,
    digit: tl.tensor,
    bins: tl.constexpr,
    block: tl.constexpr,
    steps: tl.constexpr,
    few: tl.constexpr,
) -> None:
    """Count the next digit of the magnitudes whose digits so far are those of the k-th largest."""
    prefix, _ = _bound(found, k, digit, bins)
    shift = 24 - 8 * digit
    place = tl.program_id(0) * (block * steps) + tl.arange(0, block)
    count = tl.zeros((bins,), dtype=tl.int32)
    for _step in range(0, steps):
        inside = place < entries
        magnitude = tl.load(vector + place, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        digits = magnitude >> shift
        matches = inside & ((digits >> 8) == prefix)
        number = tl.sum(matches.to(tl.int32), 0)
        # Hardly any entries share the first digits of the last ones. Of few, each is counted on its own.
        if number > few:
            count += tl.histogram(digits & (bins - 1), bins, mask=matches)
        elif number > 0:
            tl.atomic_add(found + digit * bins + (digits & (bins - 1)), 1, mask=matches, sem="relaxed")
        place += block
    tl.atomic_add(found + digit * bins + tl.arange(0, bins), count, mask=count > 0, sem="relaxed")


@triton.jit(do_not_specialize=["entries", "k"])  # type: ignore[untyped-decorator]
def _count_kept(
    vector: tl.tensor,
    found: tl.tensor,
    in_blocks: tl.tensor,
    entries: tl.tensor,
    k: tl.tensor,
    bins: tl.constexpr,
    digits: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The number of entries of every block above the k-th largest magnitude, then those equal to it."""
    threshold, _ = _bound(found, k, digits, bins)
    program = tl.program_id(0)
    magnitude = _magnitudes(vector, program * block + tl.arange(0, block), entries)
    tl.store(in_blocks + program, tl.sum((magnitude > threshold).to(tl.int32), 0))
    tl.store(in_blocks + tl.num_programs(0) + program, tl.sum((magnitude == threshold).to(tl.int32), 0))


@triton.jit(do_not_specialize=["entries", "k"])  # type: ignore[untyped-decorator]
def _write_kept(
    vector: tl.tensor,
    found: tl.tensor,
    in_blocks: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    entries: tl.tensor,
    k: tl.tensor,
    bins: tl.constexpr,
    digits: tl.constexpr,
    block: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    """Write the kept entries of a block after those of the blocks before it."""
    threshold, room = _bound(found, k, digits, bins)
    program, blocks = tl.program_id(0), tl.num_programs(0)
    above_before = _sum_between(in_blocks, 0, program, at_once)
    equal_before = _sum_between(in_blocks, blocks, blocks + program, at_once)
    place = program * block + tl.arange(0, block)
    magnitude = _magnitudes(vector, place, entries)
    is_equal = (magnitude == threshold).to(tl.int32)
    # Of the entries equal to the threshold, keep the first ones.
    kept = (magnitude > threshold) | ((is_equal > 0) & (equal_before + tl.cumsum(is_equal, 0) <= room))
    position = above_before + tl.minimum(equal_before, room) + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(indices + position, place.to(tl.int64), mask=kept)
    tl.store(values + position, tl.load(vector + place, mask=kept, other=0.0), mask=kept)


@triton.jit(do_not_specialize=["stride", "length"])  # type: ignore[untyped-decorator]
def _count_beyond(
    vector: tl.tensor,
    bounds: tl.tensor,
    in_blocks: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    block: tl.constexpr,
) -> None:
    """The number of entries above the bound in every block of every segment."""
    segment, number = tl.program_id(0), tl.program_id(1)
    magnitude = _magnitudes(vector + segment * length, number * block + tl.arange(0, block), length)
    bound = tl.load(bounds + segment * stride).to(tl.int32, bitcast=True)
    tl.store(in_blocks + segment * tl.num_programs(1) + number, tl.sum((magnitude > bound).to(tl.int32), 0))


@triton.jit(do_not_specialize=["stride", "length", "room"])  # type: ignore[untyped-decorator]
def _write_beyond(
    vector: tl.tensor,
    bounds: tl.tensor,
    in_blocks: tl.tensor,
    found: tl.tensor,
    numbers: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    """Write the magnitudes of a block above the bound after those of the blocks before it."""
    segment, number, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    program = segment * blocks + number
    before = _sum_between(in_blocks, 0, program, at_once)
    magnitude = _magnitudes(vector + segment * length, number * block + tl.arange(0, block), length)
    kept = magnitude > tl.load(bounds + segment * stride).to(tl.int32, bitcast=True)
    position = before + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(found + position, magnitude.to(tl.float32, bitcast=True), mask=kept & (position < room))
    if number == 0:
        tl.store(numbers + segment, _sum_between(in_blocks, program, program + blocks, at_once).to(tl.float32))


@triton.jit(do_not_specialize=["stride", "length", "count"])  # type: ignore[untyped-decorator]
def _sort_samples(
    vector: tl.tensor,
    samples: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    count: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write each magnitude of a sample to its rank, which is found by comparing it with all others."""
    segment, mine = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    source = vector + segment * length
    own = _magnitudes(source, mine * stride, length)
    rank = tl.zeros((block,), dtype=tl.int32)
    for first in range(0, count, block):
        other = first + tl.arange(0, block)
        rank += _before(_magnitudes(source, other * stride, length), other, own, mine)
    tl.store(samples + segment * count + rank, own.to(tl.float32, bitcast=True), mask=mine < count)


@triton.jit(do_not_specialize=["room"])  # type: ignore[untyped-decorator]
def _sort_tails(
    found: tl.tensor,
    numbers: tl.tensor,
    tails: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
) -> None:
    """As `_sort_samples`, for the tail of a segment."""
    segment, start = tl.program_id(1), 0
    for earlier in range(0, segment):
        start += tl.load(numbers + earlier).to(tl.int32)
    count = tl.minimum(tl.load(numbers + segment).to(tl.int32), room - start)
    mine = tl.program_id(0) * block + tl.arange(0, block)
    if tl.program_id(0) * block < count:
        own = _magnitudes(found + start, mine, count)
        rank = tl.zeros((block,), dtype=tl.int32)
        for first in range(0, count, block):
            other = first + tl.arange(0, block)
            rank += _before(_magnitudes(found + start, other, count), other, own, mine)
        tl.store(tails + start + rank, own.to(tl.float32, bitcast=True), mask=mine < count)


@triton.jit  # type: ignore[untyped-decorator]
def _before(magnitude: tl.tensor, other: tl.tensor, own: tl.tensor, mine: tl.tensor) -> tl.tensor:
    """How many of some magnitudes each own one exceeds, including equal ones before it. Those beyond the end are -1."""
    magnitude = tl.where(magnitude < 0, 0x7FFFFFFF, magnitude)
    own_or_next = own[:, None] + (other[None, :] < mine[:, None]).to(tl.int32)
    return tl.sum((magnitude[None, :] < own_or_next).to(tl.int32), 1)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_between(counts: tl.tensor, first: tl.tensor, end: tl.tensor, at_once: tl.constexpr) -> tl.tensor:
    total = tl.zeros((at_once,), dtype=tl.int32)
    for start in range(first, end, at_once):
        place = start + tl.arange(0, at_once)
        total += tl.load(counts + place, mask=place < end, other=0)
    return tl.sum(total, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _magnitudes(vector: tl.tensor, place: tl.tensor, entries: tl.tensor) -> tl.tensor:
    """Magnitudes as integers, in the same order; -1 beyond the end."""
    whole = tl.load(vector + place, mask=place < entries, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(place < entries, whole & 0x7FFFFFFF, -1)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _subtract_at(
    vector: tl.tensor, indices: tl.tensor, values: tl.tensor, count: tl.tensor, block: tl.constexpr
) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    at = vector + tl.load(indices + place, mask=inside, other=0)
    tl.store(at, tl.load(at, mask=inside, other=0.0) - tl.load(values + place, mask=inside, other=0.0), mask=inside)
