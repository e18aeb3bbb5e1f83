"""The motion of a fleet and its server. The server moves like a device, stands still or follows a route."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from wayfare.mobility.base import Knots, Motion, knots_from, motion_from_knots
from wayfare.scenario.mobility import FixedServer, MovingServer, RouteServer, SpatialMobility
from wayfare.streams import FLEET, Stream, generator


class Moving(ABC):
    """A model in which all devices move by one rule; the server may also stand still or follow a route."""

    __slots__ = ()
    spec: SpatialMobility

    def draw(self, devices: int, duration_s: float, seed: int) -> Motion:
        """The motion of every device and of the server, the last node. Each node has its own generator."""
        rngs = [generator(seed, Stream.DEVICE_MOTION, device) for device in range(devices)]
        server, own = self.spec.server, []
        match server:
            case MovingServer():
                rngs.append(generator(seed, Stream.SERVER_MOTION, FLEET))
            case FixedServer():
                own = [_fixed_knots(server, self.spec, duration_s)]
            case RouteServer():
                own = [_route_knots(server, duration_s)]
        return motion_from_knots([*self._all_knots(rngs, duration_s), *own], duration_s)

    @abstractmethod
    def _all_knots(self, rngs: Sequence[np.random.Generator], duration_s: float) -> list[Knots]:
        """The knots of one node per generator, up to a duration."""


def _fixed_knots(server: FixedServer, spec: SpatialMobility, duration_s: float) -> Knots:
    x_m = spec.width_m / 2 if server.x_m is None else server.x_m
    y_m = spec.height_m / 2 if server.y_m is None else server.y_m
    return np.array([0.0, duration_s]), np.full(2, x_m), np.full(2, y_m)


def _route_knots(server: RouteServer, duration_s: float) -> Knots:
    """Repeat the route from the first waypoint at time 0: a stop, then the leg to the next."""
    stops_m = np.array(server.waypoints_m)
    if server.loop == "ping-pong":
        stops_m = np.concatenate([stops_m, stops_m[-2:0:-1]])
    travel_s = np.linalg.norm(np.roll(stops_m, -1, axis=0) - stops_m, axis=1) / server.speed_mps
    # Every stop has two knots, arrival and departure.
    departure_s = np.cumsum(server.stop_s + travel_s) - travel_s
    round_s = float(departure_s[-1] + travel_s[-1])
    within_s = np.column_stack([departure_s - server.stop_s, departure_s]).ravel()
    rounds = int(duration_s // round_s) + 2
    time_s = (round_s * np.arange(rounds)[:, None] + within_s).ravel()
    place_m = np.tile(np.repeat(stops_m, 2, axis=0), (rounds, 1))
    return knots_from(time_s, place_m, duration_s)
