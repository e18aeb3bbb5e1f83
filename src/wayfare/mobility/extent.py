"""Estimate the size of a scenario's motion before it is drawn, and reject what does not fit into memory."""

from __future__ import annotations

from wayfare.errors import ScenarioError
from wayfare.scenario.mobility import (
    AnyMobility,
    ExponentialMobility,
    GaussMarkovMobility,
    LegMobility,
    ManhattanMobility,
    RouteServer,
    SpatialMobility,
    WalkMobility,
)

# A leg takes about 60 bytes, twice while it is drawn.
_MAX_LEGS = 2e8


def reject_oversized(spec: AnyMobility, devices: int, duration_s: float) -> None:
    """Reject a scenario with too many legs or contacts to draw."""
    legs = devices * duration_s / _leg_s(spec)
    if isinstance(spec, SpatialMobility) and isinstance(spec.server, RouteServer):
        legs += duration_s * len(spec.server.waypoints_m) / _route_s(spec.server)
    if legs > _MAX_LEGS:
        rule = (
            f"{devices} devices would make about {legs:.1g} legs or contacts in {duration_s:g} s, more than the "
            f"limit of {_MAX_LEGS:g}; use fewer rounds or devices, or longer and slower legs"
        )
        raise ScenarioError("mobility", spec.model, rule)


def _leg_s(spec: AnyMobility) -> float:
    """The approximate length of one leg, or of one contact and the gap after it; infinite for a trace."""
    pause_s = spec.pause_max_s / 2 if isinstance(spec, LegMobility) else 0.0
    match spec:
        case ExponentialMobility():
            return _smallest(spec.contact_s) + _smallest(spec.inter_contact_s)
        case GaussMarkovMobility():
            return spec.step_s
        case ManhattanMobility():
            return spec.block_m / spec.speed_mps + pause_s
        case WalkMobility(leg_m=float(leg_m)):
            return leg_m / spec.speed_mps + pause_s
        case WalkMobility():
            return (spec.leg_s or 30.0) + pause_s
        case SpatialMobility():
            return (spec.width_m + spec.height_m) / 4 / spec.speed_mps + pause_s
        case _:
            return float("inf")


def _route_s(server: RouteServer) -> float:
    """A lower bound on the time of one round of a route."""
    (x_m, y_m), rest = server.waypoints_m[0], server.waypoints_m[1:]
    furthest_m = max(abs(x - x_m) + abs(y - y_m) for x, y in rest)
    return furthest_m / server.speed_mps + server.stop_s * len(server.waypoints_m)


def _smallest(mean_s: float | tuple[float, ...]) -> float:
    return min(mean_s) if isinstance(mean_s, tuple) else mean_s
