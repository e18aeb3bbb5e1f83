"""A lane graph: short directed lane segments, their successors and their neighbours.

A segment is one node of MapNet. One graph holds the segments of all cities, so that a scene is a list of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wayfare.arrays import Floats, Ints

FLAGS = ("turns left", "turns right", "traffic control", "intersection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A lane, or one direction of a road in a road graph: its centre line, successors and neighbours."""

    line_m: Floats  # (points, 2), in the direction of travel
    successors: Sequence[int] = ()  # indices in the list of lanes, like left and right
    left: int | None = None
    right: int | None = None
    flags: tuple[bool, bool, bool, bool] = (False, False, False, False)


def _no_pairs() -> Ints:
    return np.zeros((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGraph:
    """Lane segments with start and end in city coordinates, and relations between them as pairs of numbers."""

    start_m: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    end_m: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    flags: Floats = field(default_factory=lambda: np.zeros((0, len(FLAGS))))
    city: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    follows: Ints = field(default_factory=_no_pairs)  # (pairs, 2): the second comes after the first
    left: Ints = field(default_factory=_no_pairs)  # (pairs, 2): the second lies to the left of the first
    right: Ints = field(default_factory=_no_pairs)

    def __len__(self) -> int:
        return len(self.start_m)

    @property
    def centre_m(self) -> Floats:
        return (self.start_m + self.end_m) / 2


def lane_graph(lanes: Sequence[Lane], spacing_m: float, city: int = 0) -> LaneGraph:
    """Cut lanes into segments of at most `spacing_m` and relate them."""
    lines = [_resampled(lane.line_m, spacing_m) for lane in lanes]
    if not lines:
        return LaneGraph()
    counts = np.array([len(line) - 1 for line in lines])
    first = np.concatenate([[0], np.cumsum(counts)])
    last = first[1:] - 1
    inner = np.setdiff1d(np.arange(first[-1]), last)
    outer = [(last[index], first[after]) for index, lane in enumerate(lanes) for after in lane.successors]
    graph = LaneGraph(
        start_m=np.concatenate([line[:-1] for line in lines]),
        end_m=np.concatenate([line[1:] for line in lines]),
        flags=np.repeat(np.array([lane.flags for lane in lanes], np.float64), counts, axis=0),
        city=np.full(first[-1], city),
        follows=np.concatenate([np.stack([inner, inner + 1], axis=1), np.array(outer, np.int64).reshape(-1, 2)]),
    )
    left, right = (
        _beside(graph.centre_m, first, [getattr(lane, side) for lane in lanes]) for side in ("left", "right")
    )
    return replace(graph, left=left, right=right)


def joined(graphs: Iterable[LaneGraph]) -> LaneGraph:
    parts = list(graphs)
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    plain = ("start_m", "end_m", "flags", "city")
    related = ("follows", "left", "right")
    if not parts:
        return LaneGraph()
    return LaneGraph(
        **{name: np.concatenate([getattr(graph, name) for graph in parts]) for name in plain},
        **{
            name: np.concatenate([getattr(graph, name) + offset for graph, offset in zip(parts, offsets, strict=False)])
            for name in related
        },
    )


def hops(pairs: Ints, nodes: int, doublings: int) -> list[Ints]:
    """Pairs that are 1, 2, 4, ... steps apart: the dilated relations of MapNet."""
    scales = [_distinct(pairs, nodes)]
    while len(scales) < doublings:
        scales.append(_distinct(_composed(scales[-1], nodes), nodes))
    return scales


def _distinct(pairs: Ints, nodes: int) -> Ints:
    """Distinct pairs, sorted by the first node, then the second."""
    codes = np.unique(pairs[:, 0] * max(nodes, 1) + pairs[:, 1])
    return np.stack(np.divmod(codes, max(nodes, 1)), axis=1)


def _composed(pairs: Ints, nodes: int) -> Ints:
    """(a, c) for all pairs (a, b) and (b, c); the given pairs are sorted."""
    begin = np.searchsorted(pairs[:, 0], np.arange(nodes + 1))
    count = np.diff(begin)[pairs[:, 1]]
    left = np.repeat(pairs[:, 0], count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    right = pairs[np.repeat(begin[pairs[:, 1]], count) + within, 1]
    return np.stack([left, right], axis=1)


def _resampled(line: Floats, spacing_m: float) -> Floats:
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    places = np.linspace(0.0, along[-1], max(int(np.ceil(along[-1] / spacing_m)), 1) + 1)
    return np.stack([np.interp(places, along, line[:, axis]) for axis in (0, 1)], axis=1)


def _beside(centre: Floats, first: Ints, neighbours: Sequence[int | None]) -> Ints:
    """Each segment of a lane with the nearest segment of the neighbouring lane."""
    found = [_no_pairs()]
    for lane, other in enumerate(neighbours):
        if other is None:
            continue
        mine, theirs = (np.arange(first[index], first[index + 1]) for index in (lane, other))
        gaps = np.linalg.norm(centre[mine][:, None] - centre[theirs][None], axis=2)
        found.append(np.stack([mine, theirs[gaps.argmin(axis=1)]], axis=1))
    return np.concatenate(found)
