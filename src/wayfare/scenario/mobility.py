"""How devices move: one section for each model, told apart by `model`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from wayfare.scenario.section import LARGEST, SMALLEST, NonNegative, Positive, Section

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Point: TypeAlias = tuple[float, float]
# Faster than anything that is met on a radio.
FASTEST_MPS = 1e4
Speed: TypeAlias = Annotated[Positive, Field(le=FASTEST_MPS)]


def _positive_or_list(value: Any) -> Any:
    """One rule for both shapes, so that a message never names the branch of a union."""
    entries = value if isinstance(value, list | tuple) else (value,)
    if not entries or not all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in entries):
        raise ValueError("must be a number above 0, or a list with one such number for each device")
    if not all(SMALLEST <= x <= LARGEST for x in entries):
        raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}")
    return tuple(value) if isinstance(value, list) else value


PerDevice: TypeAlias = Annotated[float | tuple[float, ...], BeforeValidator(_positive_or_list)]


class ExponentialMobility(Section):
    """Alternating renewal contacts (Section III-B): contact ~ exp(c), inter-contact ~ exp(lambda).

    Either mean is one number for the whole fleet or a list with one entry for each device.
    """

    model: Literal["exponential"] = "exponential"
    # The mean length of a contact.
    contact_s: PerDevice = 4.0
    # The mean time from the end of a contact to the start of the next.
    inter_contact_s: PerDevice = 100.0


class MovingServer(Section):
    """The server moves like a device."""

    kind: Literal["moving"] = "moving"


class FixedServer(Section):
    """The server stands still: at the given point, along an axis that is not given in the middle."""

    kind: Literal["fixed"] = "fixed"
    # Where the server stands along the width; without it in the middle.
    x_m: float | None = None
    # Where the server stands along the height; without it in the middle.
    y_m: float | None = None


class RouteServer(Section):
    """The server follows a route from its first waypoint on: the tour of a UAV, a bus line."""

    kind: Literal["route"] = "route"
    # The corners of the route, in order, as [x, y].
    waypoints_m: Annotated[tuple[Point, ...], Field(min_length=2)]
    # The speed of the server.
    speed_mps: Speed = 10.0
    # How long it stays at every waypoint.
    stop_s: NonNegative = 0.0
    # `closed` goes from the last waypoint to the first, `ping-pong` back the way it came.
    loop: Literal["closed", "ping-pong"] = "closed"

    @field_validator("waypoints_m")
    @classmethod
    def _apart(cls, waypoints_m: tuple[Point, ...]) -> tuple[Point, ...]:
        if any(one == other for one, other in pairwise(waypoints_m)):
            raise ValueError("two waypoints in a row must differ")
        return waypoints_m

    @model_validator(mode="after")
    def _open(self) -> Self:
        if self.loop == "closed" and self.waypoints_m[0] == self.waypoints_m[-1]:
            raise ValueError("a closed route returns to its first waypoint by itself: the last must be another")
        return self


Server: TypeAlias = Annotated[MovingServer | FixedServer | RouteServer, Field(discriminator="kind")]


class SpatialMobility(Section):
    """What models of motion have in common: a rectangle, a speed and a server."""

    # The width of the area.
    width_m: Positive = 1000.0
    # The height of the area.
    height_m: Positive = 1000.0
    # The mean speed of a device.
    speed_mps: Speed = 20.0
    server: Server = MovingServer()

    @model_validator(mode="after")
    def _server_inside(self) -> Self:
        points: tuple[Point, ...] = ()
        if isinstance(self.server, FixedServer):
            points = ((self.server.x_m or 0.0, self.server.y_m or 0.0),)
        elif isinstance(self.server, RouteServer):
            points = self.server.waypoints_m
        for x_m, y_m in points:
            if not (0 <= x_m <= self.width_m and 0 <= y_m <= self.height_m):
                raise ValueError(
                    f"server at {x_m}, {y_m} must lie inside width_m x height_m ({self.width_m} x {self.height_m})"
                )
        return self


class LegMobility(SpatialMobility):
    """Models that draw a speed for every leg and may pause after it."""

    # Per leg uniform in speed * [1 - spread, 1 + spread]. Never 1: with legs of speed 0 the mean speed decays for ever.
    speed_spread: Annotated[float, Field(ge=0, lt=1)] = 0.5
    # Uniform in [0, pause_max_s].
    pause_max_s: NonNegative = 5.0

    @property
    def speed_bounds_mps(self) -> tuple[float, float]:
        """The slowest and the fastest leg."""
        return self.speed_mps * (1 - self.speed_spread), self.speed_mps * (1 + self.speed_spread)


class WaypointMobility(LegMobility):
    """Random waypoint for devices and server (Section VI-A)."""

    model: Literal["waypoint"] = "waypoint"


class WalkMobility(LegMobility):
    """Random walk: legs of random length in uniform directions, reflected at the borders."""

    model: Literal["walk"] = "walk"
    # The mean of a leg, as a time or as a distance; without either 30 s.
    leg_s: Positive | None = None
    # See `leg_s`.
    leg_m: Positive | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.leg_s is not None and self.leg_m is not None:
            raise ValueError(f"leg_s ({self.leg_s}) and leg_m ({self.leg_m}) must not both be given")
        return self


class DirectionMobility(LegMobility):
    """Random direction: straight to the border, a pause there, then a new direction inward."""

    model: Literal["direction"] = "direction"


class GaussMarkovMobility(SpatialMobility):
    """Gauss-Markov: speed and direction are autoregressive from step to step, reflected at the borders."""

    model: Literal["gauss-markov"] = "gauss-markov"
    # alpha: 0 forgets at every step, 1 never.
    memory: Share = 0.75
    # How long speed and direction stay the same.
    step_s: Positive = 5.0
    # The standard deviation of the speed.
    speed_deviation_mps: Annotated[float, Field(ge=0, le=FASTEST_MPS)] = 5.0
    # The standard deviation of the direction.
    direction_deviation_rad: NonNegative = 1.0


class ManhattanMobility(LegMobility):
    """Manhattan grid: along streets, with a choice at every crossing."""

    model: Literal["manhattan"] = "manhattan"
    # The distance between two crossings.
    block_m: Positive = 100.0
    # What is left goes straight on.
    left: Share = 0.25
    # The chance of a right turn at a crossing.
    right: Share = 0.25
    # Uniform in [0, pause_max_s], at every crossing.
    pause_max_s: NonNegative = 0.0

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        for name, side_m in (("width_m", self.width_m), ("height_m", self.height_m)):
            blocks = round(side_m / self.block_m)
            if blocks < 1 or abs(blocks * self.block_m - side_m) > 1e-9 * side_m:
                raise ValueError(f"{name} ({side_m}) must be a whole number of blocks of block_m ({self.block_m})")
        if self.left + self.right > 1:
            raise ValueError(f"left ({self.left}) and right ({self.right}) must not sum to more than 1")
        return self


class NodeServer(Section):
    """The server is a node of the trace; `auto` is the node with the most contacts."""

    kind: Literal["node"] = "node"
    # The node that is the server; `auto` is the node with the most contacts.
    name: Annotated[str, Field(min_length=1)] = "auto"


class RoadsideUnit(Section):
    """The server stands still beside the nodes of a trace, at a point in metres or in degrees.

    Metres are those of the trace. Where its positions are degrees, x points east and y north of their median.
    """

    kind: Literal["fixed"] = "fixed"
    # Metres along the x axis of the trace.
    x_m: float | None = None
    # Metres along the y axis of the trace.
    y_m: float | None = None
    # Degrees north.
    latitude_deg: Annotated[float, Field(ge=-90, le=90)] | None = None
    # Degrees east.
    longitude_deg: Annotated[float, Field(ge=-180, le=180)] | None = None

    @model_validator(mode="after")
    def _one_position(self) -> Self:
        given = [value is not None for value in (self.x_m, self.y_m, self.latitude_deg, self.longitude_deg)]
        if given not in ([True, True, False, False], [False, False, True, True]):
            raise ValueError("needs x_m and y_m, or latitude_deg and longitude_deg, and not both pairs")
        return self


TraceServer: TypeAlias = Annotated[NodeServer | RoadsideUnit, Field(discriminator="kind")]
TraceFormat: TypeAlias = Literal["auto", "sumo-fcd", "ns2", "one", "gps", "csv-motion", "contacts", "plan"]


class TraceMobility(Section):
    """Motion or contacts out of a file: a SUMO run, an ns-2 script, GPS logs, a list of contacts, a saved plan."""

    model: Literal["trace"] = "trace"
    # The file or folder with the trace.
    file: Annotated[str, Field(min_length=1)]
    # The file format; `auto` recognises it by the content.
    format: TraceFormat = "auto"
    # The name of a node alone means that node.
    server: TraceServer = NodeServer()
    # Of SUMO's x and y; `auto` is what its header says, else what fits the speeds of the vehicles.
    coordinates: Literal["auto", "metres", "degrees"] = "auto"
    # Between two fixes further apart than this a node counts as absent.
    max_gap_s: Positive = 300.0
    # A fix that could only be reached faster than this is an outlier.
    max_speed_mps: Positive = 70.0
    # Only what lies inside x_min, y_min, x_max, y_max counts.
    box_m: tuple[float, float, float, float] | None = None
    # The time of the trace at which a run begins.
    start_s: NonNegative = 0.0
    # A trace shorter than the run is played again and again, everyone back where they were; otherwise it is refused.
    repeat: bool = False
    # Bad lines are skipped and counted instead of refused.
    lenient: bool = False

    @field_validator("server", mode="before")
    @classmethod
    def _named(cls, server: object) -> object:
        if isinstance(server, int | float):
            raise ValueError(f'must be the name of a node in quotes ("{server}"), or a table with a `kind`')
        return {"kind": "node", "name": server} if isinstance(server, str) else server

    @field_validator("box_m")
    @classmethod
    def _ordered(cls, box_m: tuple[float, float, float, float] | None) -> tuple[float, float, float, float] | None:
        if box_m is not None and not (box_m[0] < box_m[2] and box_m[1] < box_m[3]):
            raise ValueError("must be x_min, y_min, x_max, y_max with x_min < x_max and y_min < y_max")
        return box_m


AnyMobility: TypeAlias = (
    ExponentialMobility
    | WaypointMobility
    | WalkMobility
    | DirectionMobility
    | GaussMarkovMobility
    | ManhattanMobility
    | TraceMobility
)
Mobility: TypeAlias = Annotated[AnyMobility, Field(discriminator="model")]
