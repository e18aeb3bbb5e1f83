"""How devices and server move: models and traces, drawn before any learning."""

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
    """The mobility model that a scenario names; a trace counts contacts within a range to choose its nodes."""
    if isinstance(spec, TraceMobility):
        # Readers are many and a drawn world needs none of them.
        from wayfare.mobility.traces import Trace

        return Trace(spec, range_m)
    return _MODELS[type(spec)](spec)
