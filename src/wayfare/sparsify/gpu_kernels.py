"""Triton kernels for vectors on a GPU: norms, the tails of segments, and subtraction of some entries.

Results do not depend on the order of programs. Tails and differences equal those of `spectrum` and `memory` in every
bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.sparsify.gpu import pieces

_BLOCK = 1024
# Entries whose squares a program adds.
_ADDED = 4096
# Magnitudes whose ranks a program finds.
_RANKED = 64
# Entries per program where kept ones are written in order.
_WRITTEN = 4096
# Versions of Triton have different defaults. Nothing here is rounded.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}


def squared_norm(vector: Tensor) -> Tensor:
    """|x|^2 in double precision. Other ways to compute it may differ in the last digits."""
    programs = pieces(len(vector), _ADDED)
    sums = torch.empty(programs, dtype=torch.float64, device=vector.device)
    with torch.cuda.device_of(vector):
        _add_squares[(programs,)](vector, sums, len(vector), block=_ADDED, **_OPTIONS)
    return sums.sum()


def sorted_samples(rows: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th magnitude of each segment (rows), in rising order."""
    segments, length = rows.shape
    count = pieces(length, stride)
    samples = rows.new_empty(segments, count)
    with torch.cuda.device_of(rows):
        _sort_samples[(segments, pieces(count, _RANKED))](
            rows, samples, stride, length, count, block=_RANKED, **_OPTIONS
        )
    return samples


def beyond(rows: Tensor, bounds: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """The magnitudes of segments (rows) above the bound of each, in rising order, and their numbers.

    Nothing is defined beyond ``room`` magnitudes; if there are more, all of them are undefined. Numbers are floats, and
    exact up to 2^24.
    """
    segments, length = rows.shape
    blocks = pieces(length, _WRITTEN)
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
        _sort_tails[(pieces(room, _RANKED), segments)](found, numbers, tails, room, block=_RANKED, **_OPTIONS)
    return tails, numbers


def subtract_at(vector: Tensor, indices: Tensor, values: Tensor) -> None:
    """vector[indices] -= values, in place; indices are distinct."""
    with torch.cuda.device_of(vector):
        _subtract_at[(pieces(len(indices), _BLOCK),)](vector, indices, values, len(indices), block=_BLOCK, **_OPTIONS)


# One compilation serves all sizes.
@triton.jit(do_not_specialize=["entries"])  # type: ignore[untyped-decorator]
def _add_squares(vector: tl.tensor, sums: tl.tensor, entries: tl.tensor, block: tl.constexpr) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(vector + place, mask=place < entries, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))


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
