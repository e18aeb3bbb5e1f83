"""A lane graph: short directed pieces of lane, what follows what, and what lies beside what.

A piece is one node of MapNet. Pieces of all cities lie in one graph, so that a scene is a list of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wayfare.arrays import Floats, Ints

FLAGS = ("turns left", "turns right", "traffic control", "intersection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane, or one direction of a road where only roads are known: a centre line and its surroundings."""

    line_m: Floats  # (points, 2), in the direction of travel
    successors: Sequence[int] = ()  # places in the list of lanes, as are the two below
    left: int | None = None
    right: int | None = None
    flags: tuple[bool, bool, bool, bool] = (False, False, False, False)


def _no_pairs() -> Ints:
    return np.zeros((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGraph:
    """Pieces of lane with start and end in city coordinates, and relations between them as pairs of numbers."""

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
    """Cut lanes into pieces of about a spacing, none longer, and relate the pieces."""
    lines = [_resampled(lane.line_m, spacing_m) for lane in lanes]
    if not lines:
        return LaneGraph()
    counts = np.array([len(line) - 1 for line in lines])
    first = np.concatenate([[0], np.cumsum(counts)])
    last = first[1:] - 1
    inner = np.setdiff1d(np.arange(first[-1]), last)
    outer = [(last[place], first[after]) for place, lane in enumerate(lanes) for after in lane.successors]
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
    """Sorted by the first, then the second; none twice."""
    codes = np.unique(pairs[:, 0] * max(nodes, 1) + pairs[:, 1])
    return np.stack(np.divmod(codes, max(nodes, 1)), axis=1)


def _composed(pairs: Ints, nodes: int) -> Ints:
    """(a, c) wherever there are (a, b) and (b, c); pairs are sorted."""
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
    """Each piece of a lane with the nearest piece of the lane beside it."""
    found = [_no_pairs()]
    for lane, other in enumerate(neighbours):
        if other is None:
            continue
        mine, theirs = (np.arange(first[place], first[place + 1]) for place in (lane, other))
        gaps = np.linalg.norm(centre[mine][:, None] - centre[theirs][None], axis=2)
        found.append(np.stack([mine, theirs[gaps.argmin(axis=1)]], axis=1))
    return np.concatenate(found)
