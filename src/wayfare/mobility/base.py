"""The output of a mobility model: motion, or a list of contacts.

Nodes ``0 .. devices - 1`` are the devices, node ``devices`` is the server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from wayfare.arrays import Bools, Floats, Ints

SERVER = -1
"""The peer number of the server."""

Knots: TypeAlias = tuple[Floats, Floats, Floats]
"""The motion of one node as (time_s, x_m, y_m), with straight lines between knots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """Piecewise-linear motion as a table of legs, sorted by node and then by start.

    On leg i node ``node[i]`` is at ``(x_m, y_m)[i] + (vx_mps, vy_mps)[i] * (t - start_s[i])`` for
    ``start_s[i] <= t <= end_s[i]``. A pause is a leg of speed 0. A node is absent at times without a leg.
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
        first, last = np.searchsorted(self.node, [node, node + 1])
        return slice(int(first), int(last))

    def positions_m(self, node: int, time_s: Floats) -> Floats:
        """The position of a node at each time, shape (len(time_s), 2); NaN while it is absent."""
        leg, inside = self._legs_at(node, time_s)
        found = np.full((len(time_s), 2), np.nan)
        elapsed = time_s[inside] - self.start_s[leg]
        found[inside, 0] = self.x_m[leg] + self.vx_mps[leg] * elapsed
        found[inside, 1] = self.y_m[leg] + self.vy_mps[leg] * elapsed
        return found

    def speeds_mps(self, node: int, time_s: Floats) -> Floats:
        """The speed of a node at each time, between two legs that of the later one; NaN while it is absent."""
        leg, inside = self._legs_at(node, time_s)
        found = np.full(len(time_s), np.nan)
        found[inside] = np.hypot(self.vx_mps[leg], self.vy_mps[leg])
        return found

    def _legs_at(self, node: int, time_s: Floats) -> tuple[Ints, Bools]:
        """The rows of a node's legs at the times when it is present, and a mask of these times."""
        rows = self.legs_of(node)
        leg = rows.start + np.searchsorted(self.start_s[rows], time_s, side="right") - 1
        inside = leg >= rows.start
        inside[inside] = time_s[inside] <= self.end_s[leg[inside]]
        return leg[inside], inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Contacts without motion: device, peer (``SERVER`` or a device), start and end."""

    devices: int
    device: Ints
    peer: Ints
    start_s: Floats
    end_s: Floats
    distance_m: Floats | None = None


class Mobility(Protocol):
    """A mobility model, drawn before training. It depends on the seed and on nothing that is learned."""

    def draw(self, devices: int, duration_s: float, seed: int) -> Motion | Meetings:
        """The motion of all devices and the server, or their contacts, over the whole duration."""


def knots_from(time_s: Floats, place_m: Floats, duration_s: float, begin_s: float = 0.0) -> Knots:
    """Knots from ``begin_s``, which becomes time 0, to the first after the duration.

    The last leg stays whole. A shortened leg would change the last bits of its velocity, so that a longer run would
    differ.
    """
    since_s = time_s - begin_s
    first, last = np.searchsorted(since_s, 0.0, side="right"), np.searchsorted(since_s, duration_s)
    knots_s = np.concatenate([[0.0], since_s[first : last + 1]])
    x_m, y_m = (np.interp(knots_s, since_s, place_m[:, axis]) for axis in (0, 1))
    return knots_s, x_m, y_m


def motion_from_knots(knots: list[Knots], duration_s: float = math.inf) -> Motion:
    """The motion of nodes, given their knots, up to a duration."""
    tables = []
    for node, (time_s, x_m, y_m) in enumerate(knots):
        span = np.diff(time_s)
        real = (span > 0) & (time_s[:-1] < duration_s)
        span = span[real]
        tables.append(
            (
                np.full(len(span), node, dtype=np.int64),
                time_s[:-1][real],
                np.minimum(time_s[1:][real], duration_s),
                x_m[:-1][real],
                y_m[:-1][real],
                np.diff(x_m)[real] / span,
                np.diff(y_m)[real] / span,
            )
        )
    node_, start, end, x, y, vx, vy = (np.concatenate(column) for column in zip(*tables, strict=True))
    return Motion(nodes=len(knots), node=node_, start_s=start, end_s=end, x_m=x, y_m=y, vx_mps=vx, vy_mps=vy)
