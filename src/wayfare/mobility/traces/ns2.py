"""ns-2 movement files: ``set X_``, ``$ns_ at T "$node_(i) setdest x y speed"`` and ``switch ON|OFF``.

A node stops when it arrives, and turns if a later ``setdest`` comes before. The order of the lines does not matter, as
in ns-2 itself: its scheduler sorts events by time and keeps the order of simultaneous events.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from wayfare.errors import TraceError
from wayfare.mobility.base import Motion
from wayfare.mobility.traces.reading import BadLines, metres_in, name_in, number_in, numbered_lines, time_in
from wayfare.mobility.traces.recording import Recording, natural_order

_SET = re.compile(r"\$node_\(([^)]*)\)\s+set\s+([XYZ])_\s+(\S+)")
_AT = re.compile(r'\$ns_?\s+at\s+(\S+)\s+"\$node_\(([^)]*)\)\s+([^"]*)"')
# Other lines of movement files: distances for the god object, settings of the script.
_OTHER = re.compile(r'#|\$god_|\$ns_?\s+at\s+\S+\s+"\$god_|set\s|puts\s')
# Movement files place a node with a setdest at 1e9 m/s: such a speed is a jump.
_JUMP_MPS = 1e4


@dataclass(slots=True)
class _Node:
    """One node of the file: its initial position and its events."""

    place: dict[str, float] = field(default_factory=dict)
    # (time, line, x, y, speed) of a setdest; (time, line, present) of a switch.
    events: list[tuple[float, int, float, float, float] | tuple[float, int, bool]] = field(default_factory=list)


def read_ns2(stream: IO[bytes], bad: BadLines) -> Recording:
    """The motion of all nodes, from the file's time 0 to the last event or arrival."""
    nodes: defaultdict[str, _Node] = defaultdict(_Node)
    for line, text in numbered_lines(stream, bad):
        try:
            _read_line(nodes, line, text)
        except ValueError as error:
            bad.add(line, str(error))
    for name in [name for name, node in nodes.items() if not {"X", "Y"} <= node.place.keys()]:
        first = min((event[1] for event in nodes[name].events), default=None)
        bad.add(first, f"node {name} has no initial X_ and Y_")
        del nodes[name]
    if not any(node.events for node in nodes.values()):
        raise bad.nothing_left("movement of nodes")
    for node in nodes.values():
        node.events.sort(key=lambda event: event[:2])
    names = list(nodes)
    ordered = [names[index] for index in natural_order(names)]
    duration_s = max(_end_s(node) for node in nodes.values())
    if duration_s <= 0:
        raise TraceError(bad.file, None, "the movement ends at time 0: nothing moves")
    legs = [leg for number, name in enumerate(ordered) for leg in _legs(number, nodes[name], duration_s)]
    if not legs:
        raise TraceError(bad.file, None, "no node is ever present")
    node_, start_s, end_s, x_m, y_m, vx_mps, vy_mps = (np.array(column) for column in zip(*legs, strict=True))
    return Recording(
        file=str(bad.file),
        format="ns2",
        names=tuple(ordered),
        content=Motion(
            nodes=len(ordered),
            node=node_.astype(np.int64),
            start_s=start_s,
            end_s=end_s,
            x_m=x_m,
            y_m=y_m,
            vx_mps=vx_mps,
            vy_mps=vy_mps,
        ),
        duration_s=duration_s,
        skipped=bad.count,
        first_skipped=str(bad.first) if bad.first else None,
    )


def _read_line(nodes: defaultdict[str, _Node], line: int, text: str) -> None:
    """Parse one line. A line that does not belong to a movement file raises ValueError."""
    if place := _SET.match(text):
        name, axis = name_in(place[1]), place[2]
        nodes[name].place[axis] = metres_in(place[3], f"{axis}_")
        return
    order = _AT.match(text)
    if order is None:
        if _OTHER.match(text):
            return
        raise ValueError(f"not a line of an ns-2 movement file: {text[:60]!r}")
    time_s, name, words = time_in(order[1]), name_in(order[2]), order[3].split()
    if time_s < 0:
        raise ValueError(f"time = {time_s:g} is before the start of the simulation")
    match words:
        case ["setdest", x, y, speed]:
            speed_mps = number_in(speed, "speed", 1e12)
            if speed_mps < 0:
                raise ValueError(f"speed = {speed_mps:g} is negative")
            nodes[name].events.append((time_s, line, metres_in(x, "x"), metres_in(y, "y"), speed_mps))
        case ["switch", "ON" | "on" | "OFF" | "off" as state]:
            nodes[name].events.append((time_s, line, state.upper() == "ON"))
        case _:
            raise ValueError(f"the command is neither setdest x y speed nor switch ON|OFF: {order[3][:60]!r}")


class _Walker:
    """The state of a node while its events are applied: position, presence and target."""

    def __init__(self, number: int, node: _Node) -> None:
        self.number = number
        self.time_s, self.x, self.y = 0.0, node.place["X"], node.place["Y"]
        self.target: tuple[float, float, float] | None = None
        self.present = True
        self.legs: list[tuple[int, float, float, float, float, float, float]] = []

    def arrival_s(self) -> float:
        if self.target is None:
            return self.time_s
        x, y, speed_mps = self.target
        return self.time_s + float(np.hypot(x - self.x, y - self.y)) / speed_mps

    def move(self, until_s: float) -> None:
        """Move up to a time, or stop at the target."""
        if self.target is not None:
            x, y, speed_mps = self.target
            arrival_s = self.arrival_s()
            distance_m = float(np.hypot(x - self.x, y - self.y))
            vx, vy = (
                ((x - self.x) / distance_m * speed_mps, (y - self.y) / distance_m * speed_mps)
                if distance_m > 0
                else (0.0, 0.0)
            )
            self._leg(min(arrival_s, until_s), vx, vy)
            if arrival_s <= until_s:
                self.x, self.y, self.target = x, y, None
        self._leg(until_s, 0.0, 0.0)

    def _leg(self, until_s: float, vx: float, vy: float) -> None:
        if until_s <= self.time_s:
            return
        if self.present:
            self.legs.append((self.number, self.time_s, until_s, self.x, self.y, vx, vy))
        self.x += vx * (until_s - self.time_s)
        self.y += vy * (until_s - self.time_s)
        self.time_s = until_s

    def apply_event(self, event: tuple[float, int, float, float, float] | tuple[float, int, bool]) -> None:
        self.move(event[0])
        if len(event) == 3:
            self.present = event[2]
            return
        _, _, x, y, speed_mps = event
        self.target = (x, y, speed_mps) if speed_mps > 0 else None
        if speed_mps >= _JUMP_MPS:
            self.x, self.y, self.target = x, y, None


def _end_s(node: _Node) -> float:
    """The time of a node's last event, or of its arrival if it is present."""
    walker = _Walker(0, node)
    for event in node.events:
        walker.apply_event(event)
    return walker.arrival_s() if walker.present else walker.time_s


def _legs(number: int, node: _Node, duration_s: float) -> list[tuple[int, float, float, float, float, float, float]]:
    walker = _Walker(number, node)
    for event in node.events:
        walker.apply_event(event)
    walker.move(duration_s)
    return walker.legs
