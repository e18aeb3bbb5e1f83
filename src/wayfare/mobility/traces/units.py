"""Decide whether x and y of floating car data are metres or degrees, if the file does not say it."""

from __future__ import annotations

import math
from pathlib import Path

from wayfare.errors import ScenarioError
from wayfare.mobility.traces.recording import EARTH_RADIUS_M

METRES_PER_DEGREE = EARTH_RADIUS_M * math.pi / 180
# A vehicle that drives 1 m moves by this many degrees, from the equator up to 85 degrees of latitude, with some slack.
_DEGREES_PER_METRE = 0.5 / METRES_PER_DEGREE, 2 / (METRES_PER_DEGREE * math.cos(math.radians(85)))
# A vehicle that drives 1 m moves by at least this many metres, even if it turns within a time step.
_METRES_PER_METRE = 0.05
# No vehicle is this fast: positions that would imply it are not degrees.
_TOO_FAST_MPS = 1000.0

RECOGNISED = "x and y are read as degrees: degrees fit the speeds of the vehicles, metres do not"


class Units:
    """Evidence from all fixes: the distance moved, and the distance that the given speeds imply."""

    def __init__(self) -> None:
        self.could_be_degrees = True
        self._first: tuple[float, float] | None = None
        self._apart = False
        self._last: dict[int, tuple[float, float, float]] = {}
        self._moved = self._driven_m = self._passed_s = 0.0

    def add(self, node: int, time_s: float, x: float, y: float, speed_mps: float | None) -> None:
        """Add a fix of a node. The speed is None if the file has none."""
        if not (abs(x) <= 180.0 and abs(y) <= 90.0):
            self.could_be_degrees = False
            return
        self._first = self._first or (x, y)
        self._apart = self._apart or (x, y) != self._first
        before = self._last.get(node)
        self._last[node] = time_s, x, y
        if before is not None:
            span_s = time_s - before[0]
            self._moved += math.hypot(x - before[1], y - before[2])
            self._passed_s += span_s
            self._driven_m += (speed_mps or 0.0) * span_s

    def are_degrees(self, file: Path | str) -> bool:
        """Decide, or raise ScenarioError if both are possible."""
        # If all positions are equal the unit does not matter.
        if not (self.could_be_degrees and self._apart):
            return False
        ratio = self._moved / self._driven_m if self._driven_m > 0 else math.nan
        if ratio >= _METRES_PER_METRE or self._moved * METRES_PER_DEGREE > _TOO_FAST_MPS * self._passed_s:
            return False
        if _DEGREES_PER_METRE[0] <= ratio <= _DEGREES_PER_METRE[1]:
            return True
        rule = f"{file} does not say whether x and y are metres or degrees; set metres or degrees"
        raise ScenarioError("mobility.coordinates", "auto", rule)
