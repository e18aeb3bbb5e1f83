"""Contacts of many pairs of nodes: the spatial index finds candidate pairs, the exact legs give the times.

Nodes are processed in batches, so memory is bounded by the contacts of a batch, not of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.contacts import near, slabs
from wayfare.contacts.extract import meet_on_legs
from wayfare.contacts.near import Candidates
from wayfare.contacts.slabs import Slabs
from wayfare.mobility import Motion

# Pairs of slabs tested, then solved, together; their data fit into the cache of a core.
_TESTED = 32768
_SOLVED = 16384

_Pieces: TypeAlias = tuple[Ints, Ints, Floats, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairContacts:
    """All contacts of some nodes with nodes of larger number, sorted by pair, then start.

    A contact consists of one piece for each pair of legs it spans: pieces ``piece[i] .. piece[i + 1] - 1`` are those of
    contact i, on legs ``leg_one`` and ``leg_other`` from ``piece_start_s`` on.
    """

    nodes: range
    one: Ints
    other: Ints
    start_s: Floats
    end_s: Floats
    piece: Ints
    piece_start_s: Floats
    leg_one: Ints
    leg_other: Ints

    def __len__(self) -> int:
        return len(self.one)


def pair_contacts(motion: Motion, range_m: float, *, all_pairs: bool) -> Iterator[PairContacts]:
    """Contacts in batches, of all pairs of nodes or of every node with the last."""
    if motion.nodes < 2 or len(motion.node) == 0:
        return
    if not all_pairs:
        yield from _with_last(motion, range_m)
        return
    table = slabs.cut(motion, range_m)
    for candidates in near.all_pairs(table, motion.nodes, range_m):
        a, b = _hits(table, candidates, range_m)
        chunks = range(0, max(len(a), 1), _SOLVED)
        yield _joined(motion, candidates.nodes, [_pieces(motion, table, a, b, begin, range_m) for begin in chunks])


def _with_last(motion: Motion, range_m: float) -> Iterator[PairContacts]:
    """Contacts of every node with the last one, leg by leg; this needs no index."""
    last = motion.nodes - 1
    rows = motion.legs_of(last)
    starts_s, ends_s = motion.start_s[rows], motion.end_s[rows]
    bounds = np.searchsorted(motion.node, np.arange(motion.nodes))
    batch = bounds[:-1] // _SOLVED
    ends = np.append(np.flatnonzero(np.append(True, batch[1:] != batch[:-1])), last)
    for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        legs = np.arange(bounds[low], bounds[high])
        first = np.searchsorted(ends_s, motion.start_s[legs], side="right")
        counts = np.maximum(np.searchsorted(starts_s, motion.end_s[legs], side="left") - first, 0)
        leg_one = np.repeat(legs, counts)
        leg_other = np.arange(len(leg_one)) + np.repeat(rows.start + first - np.cumsum(counts) + counts, counts)
        start_s, end_s, met = meet_on_legs(motion, leg_one, leg_other, range_m)
        yield _joined(motion, range(low, high), [(leg_one.take(met), leg_other.take(met), start_s, end_s)])


def _joined(motion: Motion, nodes: range, found: list[_Pieces]) -> PairContacts:
    """Join sorted pieces into contacts."""
    leg_one, leg_other, start_s, end_s = (np.concatenate(column) for column in zip(*found, strict=True))
    one, other = motion.node.take(leg_one), motion.node.take(leg_other)
    # Pieces of one contact share an instant, which is a cut between legs and therefore exact. A pair of legs that
    # spans slabs may appear twice, and then shares more than that.
    begins = np.ones(len(one), dtype=np.bool_)
    begins[1:] = (start_s[1:] > end_s[:-1]) | (other[1:] != other[:-1]) | (one[1:] != one[:-1])
    first = np.flatnonzero(begins)
    final = np.append(first[1:], len(one)) - 1 if len(first) else first
    return PairContacts(
        nodes=nodes,
        one=one.take(first),
        other=other.take(first),
        start_s=start_s.take(first),
        end_s=end_s.take(final),
        piece=first,
        piece_start_s=start_s,
        leg_one=leg_one,
        leg_other=leg_other,
    )


def _hits(table: Slabs, candidates: Candidates, range_m: float) -> tuple[Ints, Ints]:
    """Pairs of slabs in which two nodes may meet."""
    ones, others = [candidates.one[:0]], [candidates.other[:0]]
    rows = max(1, _TESTED // table.width)
    shift, within = table.width.bit_length() - 1, table.width - 1
    for begin in range(0, len(candidates.one), rows):
        one, other = candidates.one[begin : begin + rows], candidates.other[begin : begin + rows]
        hit = np.flatnonzero(slabs.may_meet(table, one, other, range_m))
        row, slab = hit >> shift, hit & within
        ones.append((one.take(row) << shift) + slab)
        others.append((other.take(row) << shift) + slab)
    return np.concatenate(ones), np.concatenate(others)


def _pieces(motion: Motion, table: Slabs, a: Ints, b: Ints, begin: int, range_m: float) -> _Pieces:
    """Pairs of legs that come within range, and when, for a chunk of slabs."""
    last_a, last_b = a[max(begin - 1, 0) : begin + 1][:1], b[max(begin - 1, 0) : begin + 1][:1]
    a, b = a[begin : begin + _SOLVED], b[begin : begin + _SOLVED]
    # If the previous slab is in the list, it already has the pair of legs that continues into this one.
    again = table.older.ravel().take(a) & table.older.ravel().take(b)
    again &= (np.diff(a, prepend=last_a) == 1) & (np.diff(b, prepend=last_b) == 1)
    first_a, first_b = table.first.ravel().take(a), table.first.ravel().take(b)
    count_b = table.last.ravel().take(b) - first_b
    counts = (table.last.ravel().take(a) - first_a) * count_b - again
    pair = np.repeat(np.arange(len(a)), counts)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts - again, counts)
    count_b = count_b.take(pair)
    step_a = nth // count_b
    leg_one = first_a.take(pair) + step_a
    leg_other = first_b.take(pair) + nth - step_a * count_b
    start_s, end_s, met = meet_on_legs(motion, leg_one, leg_other, range_m)
    return leg_one.take(met), leg_other.take(met), start_s, end_s
