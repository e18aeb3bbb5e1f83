"""How devices move: one section per model, selected by `model`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from wayfare.scenario.section import LARGEST, SMALLEST, NonNegative, Positive, Section

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Point: TypeAlias = tuple[float, float]
# An upper limit that rejects typing errors.
FASTEST_MPS = 1e4
Speed: TypeAlias = Annotated[Positive, Field(le=FASTEST_MPS)]


def _positive_or_list(value: Any) -> Any:
    """Check both types with one rule, so that a message never names the branch of a union."""
    entries = value if isinstance(value, list | tuple) else (value,)
    if not entries or not all(isinstance(x, int | float) and not isinstance(x, bool) and x > 0 for x in entries):
        raise ValueError("must be a number above 0, or a list with one such number per device")
    if not all(SMALLEST <= x <= LARGEST for x in entries):
        raise ValueError(f"must lie between {SMALLEST:g} and {LARGEST:g}")
    return tuple(value) if isinstance(value, list) else value


PerDevice: TypeAlias = Annotated[float | tuple[float, ...], BeforeValidator(_positive_or_list)]


class ExponentialMobility(Section):
    """Alternating renewal contacts (Section III-B): contact ~ exp(c), inter-contact ~ exp(lambda).

    Each mean is one number for the whole fleet, or a list with one entry per device.
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
    """The server stands still. A missing coordinate is the middle of the area."""

    kind: Literal["fixed"] = "fixed"
    # Position along the width; None: the middle.
    x_m: float | None = None
    # Position along the height; None: the middle.
    y_m: float | None = None


class RouteServer(Section):
    """The server follows a route that starts at the first waypoint, such as a bus line or the tour of a UAV."""

    kind: Literal["route"] = "route"
    # The corners of the route, in order, as [x, y].
    waypoints_m: Annotated[tuple[Point, ...], Field(min_length=2)]
    # The speed of the server.
    speed_mps: Speed = 10.0
    # Time at every waypoint.
    stop_s: NonNegative = 0.0
    # `closed` continues from the last waypoint to the first; `ping-pong` reverses the route.
    loop: Literal["closed", "ping-pong"] = "closed"

    @field_validator("waypoints_m")
    @classmethod
    def _apart(cls, waypoints_m: tuple[Point, ...]) -> tuple[Point, ...]:
        if any(one == other for one, other in pairwise(waypoints_m)):
            raise ValueError("consecutive waypoints must differ")
        return waypoints_m

    @model_validator(mode="after")
    def _open(self) -> Self:
        if self.loop == "closed" and self.waypoints_m[0] == self.waypoints_m[-1]:
            raise ValueError("the last waypoint of a closed route must differ from the first: the route closes itself")
        return self


Server: TypeAlias = Annotated[MovingServer | FixedServer | RouteServer, Field(discriminator="kind")]


class SpatialMobility(Section):
    """The fields of all models with motion: a rectangle, a speed and a server."""

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

    # The speed of a leg is uniform in speed * [1 - spread, 1 + spread]. Below 1: with speeds down to 0 the mean speed
    # would decay forever.
    speed_spread: Annotated[float, Field(ge=0, lt=1)] = 0.5
    # Pauses are uniform in [0, pause_max_s].
    pause_max_s: NonNegative = 5.0

    @property
    def speed_bounds_mps(self) -> tuple[float, float]:
        """The lowest and highest speed of a leg."""
        return self.speed_mps * (1 - self.speed_spread), self.speed_mps * (1 + self.speed_spread)


class WaypointMobility(LegMobility):
    """Random waypoint for devices and server (Section VI-A)."""

    model: Literal["waypoint"] = "waypoint"


class WalkMobility(LegMobility):
    """Random walk: legs of random length in uniform directions, reflected at the borders."""

    model: Literal["walk"] = "walk"
    # Mean duration of a leg. Give this or `leg_m`; default: 30 s.
    leg_s: Positive | None = None
    # Mean length of a leg, instead of `leg_s`.
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
    # alpha: correlation from step to step; 0 is memoryless, 1 constant.
    memory: Share = 0.75
    # Duration of a step; speed and direction are constant within it.
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
    # The chance of a left turn at a crossing.
    left: Share = 0.25
    # The chance of a right turn; otherwise the device goes straight on.
    right: Share = 0.25
    # Pauses at crossings are uniform in [0, pause_max_s].
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
    """The server stands still in addition to the nodes of a trace, at a point in metres or degrees.

    Metres are those of the trace. If its positions are in degrees, x points east and y north of their median.
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
            raise ValueError("needs either x_m and y_m, or latitude_deg and longitude_deg")
        return self


TraceServer: TypeAlias = Annotated[NodeServer | RoadsideUnit, Field(discriminator="kind")]
TraceFormat: TypeAlias = Literal["auto", "sumo-fcd", "ns2", "one", "gps", "csv-motion", "contacts", "plan"]


class TraceMobility(Section):
    """Motion or contacts from a file: a SUMO run, an ns-2 script, GPS logs, a list of contacts or a saved plan."""

    model: Literal["trace"] = "trace"
    # The file or folder with the trace.
    file: Annotated[str, Field(min_length=1)]
    # The file format; `auto` recognises it by the content.
    format: TraceFormat = "auto"
    # The server; a text is the name of a node.
    server: TraceServer = NodeServer()
    # The unit of SUMO's x and y; `auto` follows the file header, then the speeds of the vehicles.
    coordinates: Literal["auto", "metres", "degrees"] = "auto"
    # A node is absent between two fixes with a larger gap.
    max_gap_s: Positive = 300.0
    # Drop a fix that a node could only reach and leave at a higher speed.
    max_speed_mps: Positive = 70.0
    # Ignore positions outside x_min, y_min, x_max, y_max.
    box_m: tuple[float, float, float, float] | None = None
    # The time in the trace at which a run begins.
    start_s: NonNegative = 0.0
    # Repeat a trace that is shorter than the run; otherwise such a trace is rejected.
    repeat: bool = False
    # Skip and count invalid lines; otherwise they are rejected.
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
