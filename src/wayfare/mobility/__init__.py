"""How devices and server move: models and traces, drawn before any learning."""

from __future__ import annotations

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


def from_spec(spec: AnyMobility, range_m: float) -> Mobility:
    """The mobility model that a scenario names; a trace counts contacts within a range to choose its nodes."""
    match spec:
        case ExponentialMobility():
            return Exponential(spec)
        case WaypointMobility():
            return Waypoint(spec)
        case WalkMobility():
            return Walk(spec)
        case DirectionMobility():
            return Direction(spec)
        case GaussMarkovMobility():
            return GaussMarkov(spec)
        case ManhattanMobility():
            return Manhattan(spec)
        case TraceMobility():
            # Readers are many and a drawn world needs none of them.
            from wayfare.mobility.traces import Trace

            return Trace(spec, range_m)
