"""Add a fixed server to the motion of a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wayfare.errors import ScenarioError
from wayfare.mobility.base import Motion
from wayfare.mobility.traces.recording import EARTH_RADIUS_M, Recording
from wayfare.scenario.mobility import RoadsideUnit


def with_roadside_unit(recording: Recording, unit: RoadsideUnit) -> Recording:
    """Add the unit as the last node and as the server, present for the whole recording."""
    motion = recording.content
    if not isinstance(motion, Motion):
        rule = f"{recording.file} is a list of contacts without positions; name one of its nodes as the server"
        raise ScenarioError("mobility.server.kind", unit.kind, rule)
    name, x_m, y_m = _place(recording, unit)
    last = {
        "node": motion.nodes,
        "start_s": 0.0,
        "end_s": recording.duration_s,
        "x_m": x_m,
        "y_m": y_m,
        "vx_mps": 0.0,
        "vy_mps": 0.0,
    }
    columns = {column: np.append(getattr(motion, column), value) for column, value in last.items()}
    content = Motion(nodes=motion.nodes + 1, **columns)
    return replace(recording, names=(*recording.names, name), content=content, server=name)


def _place(recording: Recording, unit: RoadsideUnit) -> tuple[str, float, float]:
    """The name of the unit, and its position in the metres of the recording."""
    if unit.latitude_deg is None or unit.longitude_deg is None:
        assert unit.x_m is not None
        assert unit.y_m is not None
        return f"fixed at {unit.x_m}, {unit.y_m} m", unit.x_m, unit.y_m
    if recording.origin_deg is None:
        rule = f"the positions of {recording.file} are metres, so the server needs x_m and y_m"
        raise ScenarioError("mobility.server.latitude_deg", unit.latitude_deg, rule)
    latitude_0, longitude_0 = recording.origin_deg
    east_deg = (unit.longitude_deg - longitude_0 + 180.0) % 360.0 - 180.0
    x_m = EARTH_RADIUS_M * np.radians(east_deg) * np.cos(np.radians(latitude_0))
    y_m = EARTH_RADIUS_M * np.radians(unit.latitude_deg - latitude_0)
    return f"fixed at latitude {unit.latitude_deg}, longitude {unit.longitude_deg}", float(x_m), float(y_m)
