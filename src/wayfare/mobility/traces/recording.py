"""`Recording`, the result of reading a trace: named nodes and their motion or contacts, from time 0 on."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wayfare.arrays import Bools, Floats, Ints
from wayfare.errors import TraceError
from wayfare.mobility.base import Meetings, Motion
from wayfare.mobility.traces.reading import BadLines

EARTH_RADIUS_M = 6_371_008.8
# No trace has a finer clock; a shorter leg would have an unbounded speed.
_SHORTEST_LEG_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The content of a trace file. Nodes are numbered in the natural order of their names (2 before 10).

    In the contacts of a recording every node counts as a device, and a pair has its smaller number first. The server
    is chosen later (see ``selection``).
    """

    file: str
    format: str
    names: tuple[str, ...]
    content: Motion | Meetings
    duration_s: float
    server: str | None = None
    # Latitude and longitude of x = y = 0, if the file has degrees.
    origin_deg: tuple[float, float] | None = None
    skipped: int = 0
    first_skipped: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Fixes:
    """Growing columns of positions, 33 bytes per fix."""

    names: dict[str, int] = field(default_factory=dict)
    node: array[int] = field(default_factory=lambda: array("q"))
    time_s: array[float] = field(default_factory=lambda: array("d"))
    x: array[float] = field(default_factory=lambda: array("d"))
    y: array[float] = field(default_factory=lambda: array("d"))
    # 1 if a node reappears: there is no leg from its previous fix to this one.
    fresh: array[int] = field(default_factory=lambda: array("b"))

    def number(self, name: str) -> int:
        """The number of a node; a new name gets a new number."""
        return self.names.setdefault(name, len(self.names))

    def add(self, node: int, time_s: float, x: float, y: float, *, fresh: bool = False) -> None:
        self.node.append(node)
        self.time_s.append(time_s)
        self.x.append(x)
        self.y.append(y)
        self.fresh.append(fresh)


def natural_order(names: Sequence[str]) -> list[int]:
    """Indices that sort names naturally: cab2 before cab10."""

    def key(index: int) -> tuple[list[str | int], str]:
        parts = re.split(r"([0-9]+)", names[index])
        return [int(part) if position % 2 else part for position, part in enumerate(parts)], names[index]

    return sorted(range(len(names)), key=key)


def motion_recording(
    fixes: Fixes,
    bad: BadLines,
    *,
    format: str,  # noqa: A002
    geographic: bool,
    max_gap_s: float,
    max_speed_mps: float | None,
) -> Recording:
    """Straight lines between the fixes of each node. A node is absent if a gap is too long or a leg too fast."""
    if not fixes.node:
        raise bad.nothing_left("positions")
    names = list(fixes.names)
    order = natural_order(names)
    number = np.empty(len(names), dtype=np.int64)
    number[order] = np.arange(len(names))
    node = number[np.frombuffer(fixes.node, dtype=np.int64)]
    time_s = np.frombuffer(fixes.time_s, dtype=np.float64)
    rows = np.lexsort((time_s, node))
    node, time_s = node[rows], time_s[rows]
    x, y = np.frombuffer(fixes.x, dtype=np.float64)[rows], np.frombuffer(fixes.y, dtype=np.float64)[rows]
    fresh = np.frombuffer(fixes.fresh, dtype=np.int8)[rows] != 0
    begin_s, end_s = float(time_s.min()), float(time_s.max())
    time_s = time_s - begin_s
    origin_deg = None
    if geographic:
        x, y, origin_deg = project(x, y)
    notes = []
    if max_speed_mps is not None:
        outlier = outliers(node, time_s, x, y, max_speed_mps)
        if outlier.any():
            notes.append(f"{int(outlier.sum()):,} of {len(node):,} fixes skipped: faster than {max_speed_mps:g} m/s")
            kept = ~outlier
            node, time_s, x, y, fresh = node[kept], time_s[kept], x[kept], y[kept], fresh[kept]
    span = np.diff(time_s)
    leg = (node[1:] == node[:-1]) & ~fresh[1:] & (span >= _SHORTEST_LEG_S) & (span <= max_gap_s)
    if max_speed_mps is not None:
        leg &= np.hypot(np.diff(x), np.diff(y)) <= max_speed_mps * span
    start = np.flatnonzero(leg)
    if len(start) == 0:
        raise TraceError(bad.file, None, f"no node has two positions at most {max_gap_s:g} s apart, so nothing moves")
    span = span[start]
    motion = Motion(
        nodes=len(names),
        node=node[start],
        start_s=time_s[start],
        end_s=time_s[start + 1],
        x_m=x[start],
        y_m=y[start],
        vx_mps=(x[start + 1] - x[start]) / span,
        vy_mps=(y[start + 1] - y[start]) / span,
    )
    return Recording(
        file=str(bad.file),
        format=format,
        names=tuple(names[index] for index in order),
        content=motion,
        duration_s=end_s - begin_s,
        origin_deg=origin_deg,
        skipped=bad.count,
        first_skipped=str(bad.first) if bad.first else None,
        notes=tuple(notes),
    )


def outliers(node: Ints, time_s: Floats, x_m: Floats, y_m: Floats, max_speed_mps: float) -> Bools:
    """Fixes with too fast legs both before and after them, removed repeatedly until none is left.

    A lasting jump has only one fast leg at each end: the caller cuts those legs and keeps the fixes.
    """
    gone = np.zeros(len(node), dtype=np.bool_)
    left = np.arange(len(node))
    while len(left) > 2:
        apart_m = np.hypot(np.diff(x_m[left]), np.diff(y_m[left]))
        fast = (np.diff(node[left]) == 0) & (apart_m > max_speed_mps * np.diff(time_s[left]))
        wrong = np.flatnonzero(fast[1:] & fast[:-1]) + 1
        if len(wrong) == 0:
            break
        gone[left[wrong]] = True
        left = np.delete(left, wrong)
    return gone


def project(longitude_deg: Floats, latitude_deg: Floats) -> tuple[Floats, Floats, tuple[float, float]]:
    """Local equirectangular projection around the median: x = R cos(lat_0) (lon - lon_0), y = R (lat - lat_0).

    Returns x and y in metres, and (lat_0, lon_0).
    """
    # Longitudes relative to the first, so that a fleet on the date line stays together.
    longitude = (longitude_deg - longitude_deg[0] + 180.0) % 360.0 - 180.0
    latitude_0, longitude_0 = float(np.median(latitude_deg)), float(np.median(longitude))
    east = np.radians(longitude - longitude_0) * np.cos(np.radians(latitude_0))
    origin_deg = latitude_0, float(longitude_deg[0]) + longitude_0
    return EARTH_RADIUS_M * east, EARTH_RADIUS_M * np.radians(latitude_deg - latitude_0), origin_deg
