"""What a mobility model gives: motion to find contacts in, or the contacts themselves.

Nodes ``0 .. devices - 1`` are the devices, node ``devices`` is the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from wayfare.arrays import Floats, Ints

SERVER = -1
"""The peer of a device that meets the server."""

Knots: TypeAlias = tuple[Floats, Floats, Floats]
"""The motion of one node as (time_s, x_m, y_m), straight lines between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """Piecewise-linear motion as a table of legs, sorted by node and then by start.

    On leg i node ``node[i]`` is at ``(x_m, y_m)[i] + (vx_mps, vy_mps)[i] * (t - start_s[i])`` for
    ``start_s[i] <= t <= end_s[i]``. A pause is a leg of speed 0; a node without a leg at a time is absent then.
    """

    nodes: int
    node: Ints
    start_s: Floats
    end_s: Floats
    x_m: Floats
    y_m: Floats
    vx_mps: Floats
    vy_mps: Floats

    def legs_of(self, node: int) -> slice:
        """The rows of one node."""
        first, last = np.searchsorted(self.node, [node, node + 1])
        return slice(int(first), int(last))

    def positions_m(self, node: int, time_s: Floats) -> Floats:
        """Where a node is at each time, shape (len(time_s), 2); NaN while it is absent."""
        rows = self.legs_of(node)
        starts, ends = self.start_s[rows], self.end_s[rows]
        found = np.full((len(time_s), 2), np.nan)
        if len(starts) == 0:
            return found
        leg = np.clip(np.searchsorted(starts, time_s, side="right") - 1, 0, None)
        inside = (time_s >= starts[leg]) & (time_s <= ends[leg])
        elapsed = time_s - starts[leg]
        found[:, 0] = self.x_m[rows][leg] + self.vx_mps[rows][leg] * elapsed
        found[:, 1] = self.y_m[rows][leg] + self.vy_mps[rows][leg] * elapsed
        found[~inside] = np.nan
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Contacts that come without motion: who, with whom (``SERVER`` or a device), from when to when."""

    devices: int
    device: Ints
    peer: Ints
    start_s: Floats
    end_s: Floats
    distance_m: Floats | None = None


class Mobility(Protocol):
    """A way of moving, drawn before any learning: it depends on the seed and on nothing that is learned."""

    def draw(self, devices: int, duration_s: float, seed: int) -> Motion | Meetings:
        """The motion of all devices and the server, or their meetings, over the whole duration."""
        ...


def clip_knots(time_s: Floats, place_m: Floats, duration_s: float, begin_s: float = 0.0) -> Knots:
    """Knots of the duration after a beginning, which becomes time 0; the first and the last leg are cut."""
    until_s = begin_s + duration_s
    first, last = np.searchsorted(time_s, begin_s, side="right"), np.searchsorted(time_s, until_s)
    knots_s = np.concatenate([[begin_s], time_s[first:last], [until_s]])
    x_m, y_m = np.interp(knots_s, time_s, place_m[:, 0]), np.interp(knots_s, time_s, place_m[:, 1])
    since_s = np.minimum(knots_s - begin_s, duration_s)
    since_s[-1] = duration_s
    return since_s, x_m, y_m


def motion_from_knots(knots: list[Knots]) -> Motion:
    """Motion of nodes given by their knots, one after another."""
    tables = []
    for node, (time_s, x_m, y_m) in enumerate(knots):
        span = np.diff(time_s)
        real = span > 0
        span = span[real]
        tables.append(
            (
                np.full(len(span), node, dtype=np.int64),
                time_s[:-1][real],
                time_s[1:][real],
                x_m[:-1][real],
                y_m[:-1][real],
                np.diff(x_m)[real] / span,
                np.diff(y_m)[real] / span,
            )
        )
    node_, start, end, x, y, vx, vy = (np.concatenate(column) for column in zip(*tables, strict=True))
    return Motion(nodes=len(knots), node=node_, start_s=start, end_s=end, x_m=x, y_m=y, vx_mps=vx, vy_mps=vy)
