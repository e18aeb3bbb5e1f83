"""Triton kernels for vectors on a GPU: norms, samples and tails of segments, and subtraction of some entries.

Results do not depend on the order of programs. Tails and differences equal those of `spectrum` and `memory` in every
bit.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.sparsify.gpu import pieces
from wayfare.sparsify.launches import Launches, kind

_BLOCK = 1024
# Entries whose squares a program adds.
_ADDED = 4096
# Magnitudes whose ranks a program finds, those that it compares them with at a time, and programs per tail.
_RANKED, _COMPARED, _SORTING = 64, 256, 32
# Entries per program where kept ones are written in order.
_WRITTEN = 4096
# Versions of Triton have different defaults. Nothing here is rounded.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}


def squared_norm(vector: Tensor) -> Tensor:
    """|x|^2 in double precision. Other ways to compute it may differ in the last digits."""
    return _squares(vector).sum()


def norm_and_samples(vector: Tensor, segments: int, stride: int, bound: int, room: int) -> Tensor:
    """What the spectrum of a vector needs, in single precision, and then the bytes of |x|^2 as two numbers.

    First every ``stride``-th magnitude of each segment, in rising order. The one with the index ``bound`` bounds the
    tail: the magnitudes above it follow, also in rising order, in an even ``room``. If there are more, all of them are
    undefined. Last the numbers of magnitudes in tails, exact up to 2^24.
    """
    key, length = kind(vector), vector.numel() // segments
    count, blocks = pieces(length, stride), pieces(length, _WRITTEN)
    sent = vector.new_empty(segments * count + room + segments + 2)
    scratch = torch.empty(room + segments * blocks, dtype=torch.int32, device=vector.device)
    torch.sum(_squares(vector), 0, keepdim=True, out=sent[-2:].view(torch.float64))
    with torch.cuda.device_of(vector):
        _sorting(1 << (count - 1).bit_length())(key, (segments, 1, 1), vector, sent, stride, length, count)
        _COUNT_BEYOND(key, (segments, blocks, 1), vector, sent, scratch, length, count, bound, room)
        _WRITE_BEYOND(key, (segments, blocks, 1), vector, sent, scratch, length, count, bound, room)
        _SORT_TAILS(key, (min(pieces(room, _RANKED), _SORTING), segments, 1), sent, scratch, count, room)
    return sent


def _squares(vector: Tensor) -> Tensor:
    """Sums of squares of a few entries each."""
    entries = vector.numel()
    programs = pieces(entries, _ADDED)
    sums = torch.empty(programs, dtype=torch.float64, device=vector.device)
    with torch.cuda.device_of(vector):
        _ADD_SQUARES(kind(vector), (programs, 1, 1), vector, sums, entries)
    return sums


def extended(indices: Tensor, values: Tensor, vector: Tensor, parameters: int) -> tuple[Tensor, Tensor]:
    """Kept indices and values, and those of all entries of the vector after its parameters in the memory after them."""
    count, statistics = indices.numel(), vector.numel() - parameters
    grid = pieces(statistics, _BLOCK), 1, 1
    with torch.cuda.device_of(vector):
        _APPEND(kind(indices, values, vector), grid, indices, values, vector, count, parameters, statistics)
    length = (count + statistics,)
    return indices.as_strided(length, (1,)), values.as_strided(length, (1,))


def subtract_at(vector: Tensor, indices: Tensor, values: Tensor, share: float) -> None:
    """vector[indices] -= share * values, in place; indices are distinct."""
    count, key = len(indices), kind(vector, indices, values)
    with torch.cuda.device_of(vector):
        _SUBTRACT_AT(key, (pieces(count, _BLOCK), 1, 1), vector, indices, values, count, share)


# One compilation serves all sizes.
@triton.jit(do_not_specialize=["entries"])  # type: ignore[untyped-decorator]
def _add_squares(vector: tl.tensor, sums: tl.tensor, entries: tl.tensor, block: tl.constexpr) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(vector + place, mask=place < entries, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit(do_not_specialize=["length", "count", "bound", "room"])  # type: ignore[untyped-decorator]
def _count_beyond(
    vector: tl.tensor,
    sent: tl.tensor,
    scratch: tl.tensor,
    length: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
) -> None:
    """The number of entries above the bound in every block of every segment."""
    segment, number = tl.program_id(0), tl.program_id(1)
    magnitude = _magnitudes(vector + segment * length, number * block + tl.arange(0, block), length)
    lowest = tl.load(sent + segment * count + bound).to(tl.int32, bitcast=True)
    tl.store(scratch + room + segment * tl.num_programs(1) + number, tl.sum((magnitude > lowest).to(tl.int32), 0))


@triton.jit(do_not_specialize=["length", "count", "bound", "room"])  # type: ignore[untyped-decorator]
def _write_beyond(
    vector: tl.tensor,
    sent: tl.tensor,
    scratch: tl.tensor,
    length: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    """Write the magnitudes of a block above the bound after those of the blocks before it."""
    segment, number, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    program, in_blocks = segment * blocks + number, scratch + room
    before = _sum_between(in_blocks, 0, program, at_once)
    magnitude = _magnitudes(vector + segment * length, number * block + tl.arange(0, block), length)
    kept = magnitude > tl.load(sent + segment * count + bound).to(tl.int32, bitcast=True)
    position = before + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(scratch + position, magnitude, mask=kept & (position < room))
    if number == 0:
        of_segment = _sum_between(in_blocks, program, program + blocks, at_once).to(tl.float32)
        tl.store(sent + tl.num_programs(0) * count + room + segment, of_segment)


@triton.jit(do_not_specialize=["stride", "length", "count"])  # type: ignore[untyped-decorator]
def _sort_samples(
    vector: tl.tensor, sent: tl.tensor, stride: tl.tensor, length: tl.tensor, count: tl.tensor, size: tl.constexpr
) -> None:
    """Write the magnitudes of a sample in rising order. One program sorts a segment and leaves most of a GPU free."""
    segment, place = tl.program_id(0), tl.arange(0, size)
    magnitude = _magnitudes(vector + segment * length, place * stride, length)
    rising = tl.sort(tl.where(place < count, magnitude, 0x7FFFFFFF))
    tl.store(sent + segment * count + place, rising.to(tl.float32, bitcast=True), mask=place < count)


@triton.jit(do_not_specialize=["count", "room"])  # type: ignore[untyped-decorator]
def _sort_tails(
    sent: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    """Write each magnitude of a tail to its rank, which is found by comparing it with all others."""
    segment, before, tails = tl.program_id(1), 0, sent + tl.num_programs(1) * count
    numbers = tails + room
    for earlier in range(0, segment):
        before += tl.load(numbers + earlier).to(tl.int32)
    in_tail = tl.minimum(tl.load(numbers + segment).to(tl.int32), room - before)
    tail = scratch + before
    for start in range(tl.program_id(0) * block, in_tail, tl.num_programs(0) * block):
        mine = start + tl.arange(0, block)
        own = tl.load(tail + mine, mask=mine < in_tail, other=-1)
        smaller = tl.zeros((block, at_once), dtype=tl.int32)
        for first in range(0, in_tail, at_once):
            other = first + tl.arange(0, at_once)
            others = tl.load(tail + other, mask=other < in_tail, other=-1)
            smaller += _is_before(others, first, own, start, block, at_once)
        rank = tl.sum(smaller, 1)
        tl.store(tails + before + rank, own.to(tl.float32, bitcast=True), mask=mine < in_tail)


@triton.jit  # type: ignore[untyped-decorator]
def _is_before(
    others: tl.tensor,
    first: tl.tensor,
    own: tl.tensor,
    start: tl.tensor,
    block: tl.constexpr,
    at_once: tl.constexpr,
) -> tl.tensor:
    """1 where one of the others is smaller than an own magnitude, or equal and before it; those beyond the end are -1.

    ``first`` and ``start`` are the places of the first other and the first own one. Places are compared one by one only
    if both lie among the same ones.
    """
    others = tl.where(others < 0, 0x7FFFFFFF, others)[None, :]
    if (first <= start) & (start < first + at_once):
        earlier = first + tl.arange(0, at_once)[None, :] < start + tl.arange(0, block)[:, None]
        found = (others < own[:, None] + earlier.to(tl.int32)).to(tl.int32)
    elif first < start:
        found = (others <= own[:, None]).to(tl.int32)
    else:
        found = (others < own[:, None]).to(tl.int32)
    return found


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


@triton.jit(do_not_specialize=["count", "share"])  # type: ignore[untyped-decorator]
def _subtract_at(
    vector: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    count: tl.tensor,
    share: tl.tensor,
    block: tl.constexpr,
) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    at = vector + tl.load(indices + place, mask=inside, other=0)
    value = share * tl.load(values + place, mask=inside, other=0.0)
    tl.store(at, tl.load(at, mask=inside, other=0.0) - value, mask=inside)


@triton.jit(do_not_specialize=["count", "parameters", "statistics"])  # type: ignore[untyped-decorator]
def _append(
    indices: tl.tensor,
    values: tl.tensor,
    vector: tl.tensor,
    count: tl.tensor,
    parameters: tl.tensor,
    statistics: tl.tensor,
    block: tl.constexpr,
) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < statistics
    value = tl.load(vector + parameters + place, mask=inside, other=0.0)
    tl.store(indices + count + place, (parameters + place).to(tl.int64), mask=inside)
    tl.store(values + count + place, value, mask=inside)


_ADD_SQUARES = Launches(_add_squares, {"block": _ADDED}, _OPTIONS)
_COUNT_BEYOND = Launches(_count_beyond, {"block": _WRITTEN}, _OPTIONS)
_WRITE_BEYOND = Launches(_write_beyond, {"block": _WRITTEN, "at_once": _BLOCK}, _OPTIONS)
_SORT_TAILS = Launches(_sort_tails, {"block": _RANKED, "at_once": _COMPARED}, _OPTIONS)
_APPEND = Launches(_append, {"block": _BLOCK}, _OPTIONS)
# A fused difference would not round the product.
_SUBTRACT_AT = Launches(_subtract_at, {"block": _BLOCK}, {**_OPTIONS, "enable_fp_fusion": False})


@cache
def _sorting(size: int) -> Launches:
    return Launches(_sort_samples, {"size": size}, {**_OPTIONS, "num_warps": 16})
