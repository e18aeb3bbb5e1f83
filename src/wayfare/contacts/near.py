"""A spatial index: which pairs of nodes may come near each other in which window of time.

Every window has a grid of cells as wide as the widest box that a node and the range around it sweep in it. So two
boxes can overlap only if their middles lie in the same or neighbouring cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wayfare.arrays import Bools, Ints
from wayfare.contacts.slabs import Singles, Slabs

# Pairs of a node and a window per batch: bounded memory, and large enough for NumPy to be fast.
_BATCH = 1 << 17
# Ranges of cells around a node.
_AROUND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Pairs of slab rows, sorted by first node, second node and window; the second node has the larger number.

    It holds all pairs whose first node is among ``nodes``.
    """

    nodes: range
    one: Ints
    other: Ints


class _Boxes(NamedTuple):
    """The box that each node sweeps in each window, with half the range around it; shape (nodes, windows)."""

    middle_x: Singles
    middle_y: Singles
    half_x: Singles
    half_y: Singles


def all_pairs(slabs: Slabs, nodes: int, range_m: float) -> Iterator[Candidates]:
    """Candidate pairs of any two nodes. The cost grows with the pairs in neighbouring cells, not with all pairs."""
    windows = slabs.windows
    boxes = _boxes(slabs, nodes, range_m)
    order, begin, until = _cells(boxes, nodes, windows)
    # Sort by cell, so that neighbours in space are neighbours in memory.
    by_cell = _Boxes(*(column.ravel().take(order) for column in boxes))
    load = (until - begin).sum(axis=(1, 2))
    batch = np.cumsum(load) // _BATCH
    ends = np.append(np.flatnonzero(np.append(True, batch[1:] != batch[:-1])), nodes)
    for low, high in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        offset, counts = begin[low:high].ravel(), (until[low:high] - begin[low:high]).ravel()
        # The slab row of the first node, repeated for each range of cells and each candidate in it.
        row = np.repeat(np.repeat(np.arange(low * windows, high * windows), _AROUND), counts)
        position = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - offset, counts)
        # Rows of one window are in the order of nodes.
        other = order.take(position)
        later = np.flatnonzero(other > row)
        row, position = row.take(later), position.take(later)
        near = _overlap_at(boxes, row, by_cell, position)
        row, other = row.take(near), order.take(position.take(near))
        by_pair = _by_pair(row // windows - low, other // windows, high - low, nodes)
        yield Candidates(nodes=range(low, high), one=row.take(by_pair), other=other.take(by_pair))


def _by_pair(one: Ints, other: Ints, ones: int, others: int) -> Ints:
    """The stable sort order by first, then second node; small integer types get a radix sort."""
    order = np.argsort(other.astype(np.min_scalar_type(others)), kind="stable")
    if ones > 1:
        order = order.take(np.argsort(one.take(order).astype(np.min_scalar_type(ones)), kind="stable"))
    return order


def _boxes(slabs: Slabs, nodes: int, range_m: float) -> _Boxes:
    shape = (nodes, slabs.windows)
    # A node absent for the whole window keeps NaN, for which no comparison holds.
    margin = np.fmax.reduce(slabs.slack_m, axis=1) + np.float32(range_m * (0.5 + 1e-5))
    columns = []
    for begin, way in ((slabs.x_m, slabs.way_x_m), (slabs.y_m, slabs.way_y_m)):
        end = begin + way
        low, high = np.minimum(begin, end).min(axis=1), np.maximum(begin, end).max(axis=1)
        columns += [((low + high) / 2).reshape(shape), ((high - low) / 2 + margin).reshape(shape)]
    return _Boxes(middle_x=columns[0], half_x=columns[1], middle_y=columns[2], half_y=columns[3])


def _overlap_at(boxes: _Boxes, one: Ints, others: _Boxes, other: Ints) -> Ints:
    """Indices of the pairs of boxes that overlap."""
    near = _reach(boxes.middle_x, boxes.half_x, one, others.middle_x, others.half_x, other)
    near &= _reach(boxes.middle_y, boxes.half_y, one, others.middle_y, others.half_y, other)
    return np.flatnonzero(near)


def _reach(middle: Singles, half: Singles, one: Ints, other_middle: Singles, other_half: Singles, other: Ints) -> Bools:
    apart = middle.ravel().take(one)
    apart -= other_middle.take(other)
    reach = half.ravel().take(one)
    reach += other_half.take(other)
    near: Bools = np.abs(apart, out=apart) <= reach
    return near


def _cells(boxes: _Boxes, nodes: int, windows: int) -> tuple[Ints, Ints, Ints]:
    """Slab rows sorted by window and cell, and the ranges of candidates of each node and window.

    The ranges are: the row of cells below, the cell to the left, the rest of the own cell, the cell to the right, the
    row of cells above.
    """
    present = ~np.isnan(boxes.half_x)
    cells = []
    for middle, half in ((boxes.middle_x, boxes.half_x), (boxes.middle_y, boxes.half_y)):
        side = np.fmax(2 * np.fmax.reduce(half, axis=0), np.float32(1e-6))
        low = np.fmin.reduce(np.where(present, middle, np.nan), axis=0)
        cell = np.where(present, (middle - low) / side, -2.0)
        # Two empty columns and rows around: neighbours have consecutive numbers, and absent nodes have none.
        cells.append(np.floor(cell).astype(np.int64) + 2)
    column, row = cells
    columns, rows = int(column.max()) + 3, int(row.max()) + 3
    key = (np.arange(windows) * rows + row) * columns + column
    # Sorted by node within a cell, so that later nodes have larger numbers.
    order = np.argsort(key.T.ravel(), kind="stable")
    ordered = key.T.ravel()[order]
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    begin = np.searchsorted(ordered, key[:, :, None] + [-columns - 1, -1, 0, 1, columns - 1], side="left")
    until = np.searchsorted(ordered, key[:, :, None] + [1 - columns, -1, 0, 1, columns + 1], side="right")
    begin[:, :, _AROUND // 2] = position.reshape(windows, nodes).T + 1
    until[~present] = begin[~present]
    return order % nodes * windows + order // nodes, begin, until
