"""Motion cut into short time slabs, in single precision: a cheap test for pairs that may meet.

In a slab a node is replaced by a chord, a straight line near its path, and a slack, its largest distance from that
chord. Two nodes cannot meet in a slab if their chords stay further apart than the range plus both slacks. The test
has no false negatives; pairs that pass it are solved on the exact legs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Bools, Floats, Ints
from wayfare.mobility import Motion

Singles = NDArray[np.float32]
Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slabs:
    """One row per node and window of slabs, the unit of the spatial index: ``node * windows + window``."""

    windows: int
    # Slabs in a window, a power of two.
    width: int
    # Start of each chord, relative to the middle of the area, and the vector to its end.
    x_m: Singles
    y_m: Singles
    way_x_m: Singles
    way_y_m: Singles
    # The largest distance of a node from its chord; NaN if it is absent, so that no comparison holds.
    slack_m: Singles
    # The legs of the node in the slab: from `first` to before `last`.
    first: Rows
    last: Rows
    # Whether the first leg began before the slab.
    older: Bools


def cut(motion: Motion, range_m: float) -> Slabs:
    """Cut a motion into slabs whose length suits the range."""
    origin_s, slab_s, windows, width = _grid(motion, range_m)
    slabs = windows * width
    bounds_s = origin_s + slab_s * np.arange(slabs + 1, dtype=np.float64)
    nodes = motion.nodes
    offset = np.searchsorted(motion.node, np.arange(nodes))
    began = np.searchsorted(bounds_s, motion.start_s, side="right") - 1
    ended = np.searchsorted(bounds_s, motion.end_s, side="left")
    # Legs of a node that ended by each bound, and legs that started before the end of each slab.
    over = _running_count(motion.node, ended, nodes, slabs + 1) + offset[:, None]
    last = _running_count(motion.node, began, nodes, slabs + 1)[:, :-1] + offset[:, None]
    first = over[:, :-1]
    x_m, y_m = _bound_positions_m(motion, over, bounds_s)
    shift_x_m, shift_y_m, slack_m = _strays_m(motion, began, ended - 1, bounds_s, x_m, y_m)
    x_m -= (x_m.min() + x_m.max()) / 2
    y_m -= (y_m.min() + y_m.max()) / 2
    # The rounding error of positions in single precision, and of sums of them.
    slack_m += 1e-6 * (np.abs(x_m).max() + np.abs(y_m).max() + range_m)
    slack_m[first >= last] = np.nan
    older = motion.start_s[np.minimum(first, len(motion.node) - 1)] < bounds_s[:-1]
    shape = (nodes * windows, width)
    return Slabs(
        windows=windows,
        width=width,
        x_m=(x_m[:, :-1] + shift_x_m).astype(np.float32).reshape(shape),
        y_m=(y_m[:, :-1] + shift_y_m).astype(np.float32).reshape(shape),
        way_x_m=np.diff(x_m, axis=1).astype(np.float32).reshape(shape),
        way_y_m=np.diff(y_m, axis=1).astype(np.float32).reshape(shape),
        slack_m=slack_m.astype(np.float32).reshape(shape),
        first=first.astype(np.int32).reshape(shape),
        last=last.astype(np.int32).reshape(shape),
        older=older.reshape(shape),
    )


def may_meet(slabs: Slabs, one: Ints, other: Ints, range_m: float) -> Bools:
    """Whether the chords of two rows come within range plus slacks, for every slab; shape (len(one), width).

    min over t in [0, 1] of |d + u t| <= range + slack_1 + slack_2, at t = clip(-(d . u) / u^2, 0, 1)
    """
    x, y, ux, uy = (_difference(column, one, other) for column in (slabs.x_m, slabs.y_m, slabs.way_x_m, slabs.way_y_m))
    scratch = y * uy
    t = x * ux
    t += scratch
    np.negative(t, out=t)
    np.multiply(uy, uy, out=scratch)
    speed_sq = ux * ux
    speed_sq += scratch
    # For nodes at rest relative to each other any t works.
    speed_sq += np.float32(1e-30)
    t /= speed_sq
    np.clip(t, 0.0, 1.0, out=t)
    ux *= t
    ux += x
    ux *= ux
    uy *= t
    uy += y
    uy *= uy
    ux += uy
    reach = slabs.slack_m.take(one, axis=0)
    reach += slabs.slack_m.take(other, axis=0)
    reach += np.float32(range_m * (1 + 1e-5))
    reach *= reach
    near: Bools = ux <= reach
    return near


def _difference(column: Singles, one: Ints, other: Ints) -> Singles:
    difference: Singles = column.take(one, axis=0)
    difference -= column.take(other, axis=0)
    return difference


def _grid(motion: Motion, range_m: float) -> tuple[float, float, int, int]:
    """Origin and length of slabs, the number of windows, and the number of slabs per window.

    In a slab a node should cover about one and a half ranges: then few other nodes come near, and the slab holds most
    of a contact. With more than a few legs the chord would be too rough.
    """
    span_s = motion.end_s - motion.start_s
    origin_s, until_s = float(motion.start_s.min()), float(motion.end_s.max())
    present_s = float(span_s.sum())
    speed_mps = float((np.hypot(motion.vx_mps, motion.vy_mps) * span_s).sum()) / present_s
    length_s = min(until_s - origin_s, 2 * present_s / len(span_s))
    if speed_mps > 0:
        length_s = min(length_s, 1.6 * range_m / speed_mps)
    area_m2 = float(np.ptp(motion.x_m) * np.ptp(motion.y_m))
    width = _window_width(length_s * speed_mps, range_m, motion.nodes, area_m2)
    windows = max(1, int(np.ceil((until_s - origin_s) / (length_s * width))))
    # Slightly longer than needed, so that rounding cannot put the last leg past the last bound.
    return origin_s, (until_s - origin_s) / (windows * width) * (1 + 1e-12), windows, width


def _window_width(way_m: float, range_m: float, nodes: int, area_m2: float) -> int:
    """The number of slabs per window: few if most nodes are far away, many if all are near anyway.

    A rough estimate of nanoseconds per slab: the cost of a window, of each node in the cells around, of each
    overlapping box, and of each slab test.
    """

    def cost_ns(width: int) -> float:
        per_m2 = nodes / max(area_m2, range_m**2)
        in_cells = min(nodes, per_m2 * 9 * (1.5 * way_m * width + range_m) ** 2)
        in_boxes = min(nodes, per_m2 * (1.3 * way_m * width + 2 * range_m) ** 2)
        return (1600 + 12 * in_cells + 40 * in_boxes) / width + 5 * in_boxes

    return min((4, 8, 16, 32), key=cost_ns)


def _running_count(node: Ints, column: Ints, nodes: int, columns: int) -> Ints:
    """The cumulative number of legs of each node by column."""
    counts = np.bincount(node * columns + column, minlength=nodes * columns)
    running: Ints = np.cumsum(counts.reshape(nodes, columns), axis=1)
    return running


def _bound_positions_m(motion: Motion, over: Ints, bounds_s: Floats) -> tuple[Floats, Floats]:
    """The position of each node at each bound; an absent node is at the nearest end of a leg."""
    final = np.cumsum(np.bincount(motion.node, minlength=motion.nodes)) - 1
    leg = np.maximum(np.minimum(over, final[:, None]), 0)
    since_s = np.clip(bounds_s, motion.start_s[leg], motion.end_s[leg]) - motion.start_s[leg]
    return motion.x_m[leg] + motion.vx_mps[leg] * since_s, motion.y_m[leg] + motion.vy_mps[leg] * since_s


def _strays_m(
    motion: Motion, began: Ints, ended: Ints, bounds_s: Floats, x_m: Floats, y_m: Floats
) -> tuple[Floats, Floats, Floats]:
    """The shift of each chord towards its node's path, and the largest distance of the path from it.

    Motion is piecewise linear, so the largest distance is at an end of a leg, or at a bound of the slab, where the
    unshifted chord has distance 0. With one turn in a slab, a shift by half the distance to it halves the slack.
    """
    slabs = len(bounds_s) - 1
    span_s = motion.end_s - motion.start_s
    ends = []
    for slab, time_s, since_s in ((began, motion.start_s, 0.0), (ended, motion.end_s, span_s)):
        row = motion.node * (slabs + 1) + slab
        share = (time_s - bounds_s.take(slab)) / (bounds_s[1] - bounds_s[0])
        off_x = motion.x_m + motion.vx_mps * since_s - _between(x_m.ravel(), row, share)
        off_y = motion.y_m + motion.vy_mps * since_s - _between(y_m.ravel(), row, share)
        ends.append((row - motion.node, off_x, off_y))
    index, off_x, off_y = (np.concatenate(column) for column in zip(*ends, strict=True))
    size = motion.nodes * slabs
    halves = 0.5 / np.maximum(np.bincount(index, minlength=size), 1)
    shift_x, shift_y = (np.bincount(index, off, minlength=size) * halves for off in (off_x, off_y))
    strays_sq = shift_x**2 + shift_y**2
    off_x -= shift_x.take(index)
    off_y -= shift_y.take(index)
    np.maximum.at(strays_sq, index, off_x**2 + off_y**2)
    shape = (motion.nodes, slabs)
    return shift_x.reshape(shape), shift_y.reshape(shape), np.sqrt(strays_sq).reshape(shape)


def _between(bounds_m: Floats, row: Ints, share: Floats) -> Floats:
    """The coordinate on a chord after a share of its slab."""
    begin = bounds_m.take(row)
    along_m: Floats = begin + (bounds_m.take(row + 1) - begin) * share
    return along_m
