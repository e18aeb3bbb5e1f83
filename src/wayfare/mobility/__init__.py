"""Mobility models and traces of devices and server, drawn before training.

Design decisions:

- The end of a run cuts no leg. A node's last leg is drawn whole and only its time is cut, so a longer world starts with
  exactly the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wayfare.mobility.base import SERVER, Meetings, Mobility, Motion
from wayfare.mobility.direction import Direction
from wayfare.mobility.exponential import Exponential
from wayfare.mobility.gauss_markov import GaussMarkov
from wayfare.mobility.manhattan import Manhattan
from wayfare.mobility.walk import Walk
from wayfare.mobility.waypoint import Waypoint
from wayfare.scenario.mobility import (
    AnyMobility,
    DirectionMobility,
    ExponentialMobility,
    GaussMarkovMobility,
    ManhattanMobility,
    TraceMobility,
    WalkMobility,
    WaypointMobility,
)

__all__ = ["SERVER", "Meetings", "Mobility", "Motion", "from_spec"]


_MODELS: Mapping[type[AnyMobility], Callable[[Any], Mobility]] = {
    ExponentialMobility: Exponential,
    WaypointMobility: Waypoint,
    WalkMobility: Walk,
    DirectionMobility: Direction,
    GaussMarkovMobility: GaussMarkov,
    ManhattanMobility: Manhattan,
}


def from_spec(spec: AnyMobility, range_m: float) -> Mobility:
    """The mobility model of a scenario. A trace chooses its nodes by their contacts within ``range_m``."""
    if isinstance(spec, TraceMobility):
        # Imported late: drawn worlds do not need the trace readers.
        from wayfare.mobility.traces import Trace

        return Trace(spec, range_m)
    return _MODELS[type(spec)](spec)
