"""How much motion a scenario asks for, estimated before any is drawn: what no memory holds is refused at once."""

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
_MOST_LEGS = 2e8


def refuse_endless(spec: AnyMobility, devices: int, duration_s: float) -> None:
    """Refuse a fleet whose legs or contacts nobody could hold or wait for."""
    legs = devices * duration_s / _leg_s(spec)
    if isinstance(spec, SpatialMobility) and isinstance(spec.server, RouteServer):
        legs += duration_s * len(spec.server.waypoints_m) / _route_s(spec.server)
    if legs > _MOST_LEGS:
        rule = (
            f"{devices} devices would make about {legs:.1g} legs or contacts in {duration_s:g} s, more than the "
            f"{_MOST_LEGS:g} that can be drawn; fewer rounds or devices, or longer and slower legs"
        )
        raise ScenarioError("mobility", spec.model, rule)


def _leg_s(spec: AnyMobility) -> float:
    """About how long one leg lasts, or one contact and the gap after it; a trace is as long as its file."""
    pause_s = spec.pause_max_s / 2 if isinstance(spec, LegMobility) else 0.0
    match spec:
        case ExponentialMobility():
            return _least(spec.contact_s) + _least(spec.inter_contact_s)
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
    """At least how long one round of a route lasts."""
    (x_m, y_m), rest = server.waypoints_m[0], server.waypoints_m[1:]
    furthest_m = max(abs(x - x_m) + abs(y - y_m) for x, y in rest)
    return furthest_m / server.speed_mps + server.stop_s * len(server.waypoints_m)


def _least(mean_s: float | tuple[float, ...]) -> float:
    return min(mean_s) if isinstance(mean_s, tuple) else mean_s
