"""The entries of largest magnitude of a vector on a GPU, in Triton kernels.

A sample brackets the k-th largest magnitude. One pass counts what lies above the bracket and copies what lies in it,
and the magnitude is found among these few by digits from the highest on. If the bracket was wrong, all entries are
searched; which of the two is decided on the GPU, so that the host never waits.

Counts are integers, so results do not depend on the order of programs. They equal those of `topk` in every bit.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.sparsify.gpu import pieces
from wayfare.sparsify.launches import Launches, kind

# A magnitude, read as an integer, has four digits.
_DIGITS, _BINS = 4, 256
_SAMPLED = 8192
# The bracket has room for this share of all entries.
_ROOM = 8
# Entries that a program counts at a time, which takes as long as counting a few, and the most programs that count. A
# bracket has work for few, and others would only take the place of local steps.
_COUNTED, _FEW, _COUNTING = 4096, 64, 264
# Entries per program where entries are copied or written.
_COPIED = 4096
# Counts of earlier blocks that a program adds at a time.
_ADDED = 2048
# The scratch memory begins with the low and high end of the bracket, the entries above and in it, the threshold and the
# number of ties to keep. Counts of digits follow, then the magnitudes in the bracket, then counts of blocks.
_STATE = tl.constexpr(8)
_HEAD = tl.constexpr(8 + _DIGITS * _BINS)
# Entries of memory after the kept ones, in which statistics can be added without a copy.
ROOM_AFTER = 8192
# Versions of Triton have different defaults. Nothing here is rounded.
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}


def largest(vector: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the k entries of largest magnitude, 0 < k < len(vector); ties go to the lower index.

    Both have room for `ROOM_AFTER` more entries.
    """
    entries, where, key = vector.numel(), vector.device, kind(vector)
    room, blocks = _room(entries), (pieces(entries, _COPIED), 1, 1)
    counted = min(pieces(entries, _COUNTED), _COUNTING), 1, 1
    scratch = torch.empty(_HEAD.value + room + 2 * blocks[0], dtype=torch.int32, device=where)
    indices = torch.empty(k + ROOM_AFTER, dtype=torch.int64, device=where)[:k]
    values = vector.new_empty(k + ROOM_AFTER)[:k]
    with torch.cuda.device_of(vector):
        _BRACKET(key, (1, 1, 1), vector, scratch, *_sample_ranks(entries, k))
        _COPY_BRACKET(key, blocks, vector, scratch, entries, room)
        for digit in range(_DIGITS):
            _COUNT_DIGITS(key, counted, vector, scratch, entries, room, k, digit)
        _COUNT_KEPT(key, blocks, vector, scratch, entries, room, k)
        _WRITE_KEPT(key, blocks, vector, scratch, indices, values, entries, room)
    return indices, values


def _room(entries: int) -> int:
    """Of the bracket; a multiple of 4, so that what follows it is aligned."""
    return 4 * pieces(entries, 4 * _ROOM)


def _sample_ranks(entries: int, k: int) -> tuple[int, int, int, int]:
    """The stride and number of the sampled entries, and their ranks between which the k-th largest entry lies."""
    stride = max(entries // _SAMPLED, 1) | 1
    count = min(pieces(entries, stride), _SAMPLED)
    rank = count * k / entries
    # Five standard deviations of the rank of a quantile in a sample; it lies outside about once in a million.
    margin = 5 * math.sqrt(rank * (1 - rank / count)) + 1
    return stride, count, math.ceil(rank + margin), math.floor(rank - margin)


@triton.jit(do_not_specialize=["stride", "count", "low_rank", "high_rank"])  # type: ignore[untyped-decorator]
def _bracket(
    vector: tl.tensor,
    state: tl.tensor,
    stride: tl.tensor,
    count: tl.tensor,
    low_rank: tl.tensor,
    high_rank: tl.tensor,
    size: tl.constexpr,
) -> None:
    """The entries of a sample with two ranks, bit by bit from the highest on, without their last 16 bits.

    All that is counted later starts at 0.
    """
    place = tl.arange(0, size)
    tl.store(state + place, tl.zeros((size,), dtype=tl.int32), mask=(place > 1) & (place < _HEAD))
    sampled = tl.load(vector + place * stride, mask=place < count, other=0.0).to(tl.int32, bitcast=True)
    magnitude = tl.where(place < count, sampled & 0x7FFFFFFF, -1)
    low, high = stride * 0, stride * 0
    for step in range(0, 15):
        bit = 1 << (30 - step)
        # Both counts are below 2^16 and are summed at once.
        both = tl.sum((magnitude >= (low | bit)).to(tl.int32) + ((magnitude >= (high | bit)).to(tl.int32) << 16), 0)
        low = tl.where((both & 0xFFFF) >= low_rank, low | bit, low)
        high = tl.where((both >> 16) >= high_rank, high | bit, high)
    tl.store(state, tl.where(low_rank > count, 0, low))
    tl.store(state + 1, tl.where(high_rank < 1, 0x7FFFFFFF, high + 0xFFFF))


@triton.jit(do_not_specialize=["entries", "room"])  # type: ignore[untyped-decorator]
def _copy_bracket(
    vector: tl.tensor, state: tl.tensor, entries: tl.tensor, room: tl.tensor, block: tl.constexpr
) -> None:
    """Copy the magnitudes in the bracket, in any order, and count those above it."""
    low, high = tl.load(state), tl.load(state + 1)
    magnitude = _magnitudes(vector, tl.program_id(0) * block + tl.arange(0, block), entries)
    tl.atomic_add(state + 2, tl.sum((magnitude > high).to(tl.int32), 0), sem="relaxed")
    is_between = (magnitude >= low) & (magnitude <= high)
    ordinal = tl.cumsum(is_between.to(tl.int32), 0)
    first = tl.atomic_add(state + 3, tl.max(ordinal, 0), sem="relaxed")
    position = first + ordinal - 1
    tl.store(state + _HEAD + position, magnitude, mask=is_between & (position < room))


@triton.jit  # type: ignore[untyped-decorator]
def _searched(state: tl.tensor, entries: tl.tensor, room: tl.tensor, k: tl.tensor) -> tl.tensor:
    """How many magnitudes are searched in the bracket or else in all entries, from which on, and which is sought."""
    above, between, low = tl.load(state + 2), tl.load(state + 3), tl.load(state)
    is_right = (above < k) & (k <= above + between) & (between <= room)
    return (
        tl.where(is_right, between, 0),
        tl.where(is_right, 0, entries),
        tl.where(is_right, low, 0),
        tl.where(is_right, k - above, k),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _digits_so_far(state: tl.tensor, k: tl.tensor, digits: tl.tensor, bins: tl.constexpr) -> tl.tensor:
    """The first digits of the k-th largest number, and how many numbers with these digits belong to the k."""
    prefix, left = k * 0, k
    bin_ = tl.arange(0, bins)
    for digit in range(0, digits):
        count = tl.load(state + _STATE + digit * bins + bin_)
        # The highest digit that leaves at least as many entries as are sought; 0 if the first was not counted.
        chosen = tl.maximum(tl.sum((tl.cumsum(count, 0, reverse=True) >= left).to(tl.int32), 0) - 1, 0)
        left -= tl.sum(tl.where(bin_ > chosen, count, 0), 0)
        prefix = prefix * bins + chosen
    return prefix, left


# One compilation serves all sizes.
@triton.jit(do_not_specialize=["entries", "room", "k", "digit"])  # type: ignore[untyped-decorator]
def _count_digits(
    vector: tl.tensor,
    state: tl.tensor,
    entries: tl.tensor,
    room: tl.tensor,
    k: tl.tensor,
    digit: tl.tensor,
    bins: tl.constexpr,
    block: tl.constexpr,
    few: tl.constexpr,
) -> None:
    """Count the next digit of the searched magnitudes whose digits so far are those of the sought one."""
    in_bracket, in_all, base, rank = _searched(state, entries, room, k)
    first = tl.program_id(0) * block
    # In a narrow bracket the first digit is 0.
    is_known = (digit == 0) & (in_bracket > 0) & (tl.load(state + 1) - base < 1 << 24)
    if first < tl.where(is_known, 0, in_bracket + in_all):
        prefix, _ = _digits_so_far(state, rank, digit, bins)
        found, shift = state + _STATE + digit * bins, 24 - 8 * digit
        count = tl.zeros((bins,), dtype=tl.int32)
        for start in range(first, in_bracket + in_all, tl.num_programs(0) * block):
            place = start + tl.arange(0, block)
            number = tl.load(state + _HEAD + place, mask=place < in_bracket, other=0)
            number += tl.load(vector + place, mask=place < in_all, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
            digits = (number - base) >> shift
            matches = (place < in_bracket + in_all) & ((digits >> 8) == prefix)
            matching = tl.sum(matches.to(tl.int32), 0)
            # Hardly any entries share the first digits of the last ones. Of few, each is counted on its own.
            if matching > few:
                count += tl.histogram(digits & (bins - 1), bins, mask=matches)
            elif matching > 0:
                tl.atomic_add(found + (digits & (bins - 1)), 1, mask=matches, sem="relaxed")
        tl.atomic_add(found + tl.arange(0, bins), count, mask=count > 0, sem="relaxed")


@triton.jit(do_not_specialize=["entries", "room", "k"])  # type: ignore[untyped-decorator]
def _count_kept(
    vector: tl.tensor,
    state: tl.tensor,
    entries: tl.tensor,
    room: tl.tensor,
    k: tl.tensor,
    bins: tl.constexpr,
    digits: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The number of entries of every block above the k-th largest magnitude, then those equal to it."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    _, _, base, rank = _searched(state, entries, room, k)
    found, ties = _digits_so_far(state, rank, digits, bins)
    threshold = base + found
    if program == 0:
        tl.store(state + 4, threshold)
        tl.store(state + 5, ties)
    magnitude = _magnitudes(vector, program * block + tl.arange(0, block), entries)
    # Both counts are below 2^16 and are summed at once.
    both = tl.sum((magnitude > threshold).to(tl.int32) + ((magnitude == threshold).to(tl.int32) << 16), 0)
    in_blocks = state + _HEAD + room
    tl.store(in_blocks + program, both & 0xFFFF)
    tl.store(in_blocks + programs + program, both >> 16)


@triton.jit(do_not_specialize=["entries", "room"])  # type: ignore[untyped-decorator]
def _write_kept(
    vector: tl.tensor,
    state: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    entries: tl.tensor,
    room: tl.tensor,
    block: tl.constexpr,
    added: tl.constexpr,
) -> None:
    """Write the kept entries of a block after those of the blocks before it."""
    threshold, ties = tl.load(state + 4), tl.load(state + 5)
    program, in_blocks = tl.program_id(0), state + _HEAD + room
    equal_in_blocks = in_blocks + tl.num_programs(0)
    above_before, equal_before = program * 0, program * 0
    for start in range(0, program, added):
        earlier = start + tl.arange(0, added)
        above_before += tl.sum(tl.load(in_blocks + earlier, mask=earlier < program, other=0), 0)
        equal_before += tl.sum(tl.load(equal_in_blocks + earlier, mask=earlier < program, other=0), 0)
    place = program * block + tl.arange(0, block)
    value = tl.load(vector + place, mask=place < entries, other=0.0)
    magnitude = tl.where(place < entries, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    kept = magnitude > threshold
    # Of the entries equal to the threshold, keep the first ones.
    if tl.load(equal_in_blocks + program) > 0:
        is_equal = magnitude == threshold
        kept = kept | (is_equal & (equal_before + tl.cumsum(is_equal.to(tl.int32), 0) <= ties))
    position = above_before + tl.minimum(equal_before, ties) + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(indices + position, place.to(tl.int64), mask=kept)
    tl.store(values + position, value, mask=kept)


@triton.jit  # type: ignore[untyped-decorator]
def _magnitudes(vector: tl.tensor, place: tl.tensor, entries: tl.tensor) -> tl.tensor:
    """Magnitudes as integers, in the same order; -1 beyond the end."""
    whole = tl.load(vector + place, mask=place < entries, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(place < entries, whole & 0x7FFFFFFF, -1)


_BRACKET = Launches(_bracket, {"size": _SAMPLED}, _OPTIONS)
_COPY_BRACKET = Launches(_copy_bracket, {"block": _COPIED}, _OPTIONS)
_COUNT_DIGITS = Launches(_count_digits, {"bins": _BINS, "block": _COUNTED, "few": _FEW}, _OPTIONS)
_COUNT_KEPT = Launches(_count_kept, {"bins": _BINS, "digits": _DIGITS, "block": _COPIED}, _OPTIONS)
_WRITE_KEPT = Launches(_write_kept, {"block": _COPIED, "added": _ADDED}, _OPTIONS)
