"""SUMO floating car data: ``<fcd-export><timestep time=".."><vehicle id x y/>``, read as a stream.

The document is never in memory; only four numbers per position are.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import IO
from xml.parsers import expat

from wayfare.errors import TraceError
from wayfare.mobility.traces.reading import DAMAGED, PLACE_LIMIT_M, BadLines, metres_in, name_in, number_in, time_in
from wayfare.mobility.traces.recording import Fixes, Recording, motion_recording
from wayfare.mobility.traces.units import RECOGNISED, Units

_CHUNK_BYTES = 1 << 16
# A parser buffers an unfinished token; no real file goes this far without an element.
_LONGEST_SILENCE_BYTES = 1 << 24
_MOVING = frozenset({"vehicle", "person"})
_GEOGRAPHIC = re.compile(r'fcd-output\.geo value="(true|1|yes|on|t|x)"')


def read_sumo(stream: IO[bytes], bad: BadLines, *, max_gap_s: float, coordinates: str = "auto") -> Recording:
    """The motion of all vehicles and persons. One that misses a time step is absent until it reappears.

    ``coordinates`` are ``metres``, ``degrees`` or ``auto``: by SUMO's own header, else by what fits the speeds.
    """
    reader = _Reader(bad, None if coordinates == "auto" else coordinates == "degrees")
    try:
        while True:
            chunk = stream.read(_CHUNK_BYTES)
            reader.parser.Parse(chunk, not chunk)
            if not chunk:
                break
            reader.check_silence(len(chunk))
    except DAMAGED as error:
        bad.add(reader.line, f"the data is damaged or truncated: {error}")
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        truncated = reason in ("no element found", "unclosed token")
        bad.add(error.lineno, f"the XML is truncated ({reason})" if truncated else f"not XML: {reason}")
    except (LookupError, ValueError) as error:
        bad.add(reader.line, f"not XML: {error}")
    recognised = reader.geographic is None and reader.units.are_degrees(bad.file)
    recording = motion_recording(
        reader.fixes,
        bad,
        format="sumo-fcd",
        geographic=reader.geographic or recognised,
        max_gap_s=max_gap_s,
        max_speed_mps=None,
    )
    return replace(recording, notes=(*recording.notes, RECOGNISED)) if recognised else recording


class _Reader:
    """The handlers of the parser, with the current time step and the last step of every node."""

    def __init__(self, bad: BadLines, geographic: bool | None) -> None:
        self.bad, self.fixes, self.units = bad, Fixes(), Units()
        # None while unknown.
        self.geographic = geographic
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self.start
        self.parser.CommentHandler = self.comment
        self.parser.EntityDeclHandler = self.entity
        self._silence_bytes = 0
        self._depth_seen = False
        self._step = 0
        self._time_s: float | None = None
        self._usable = False
        self._last_step: list[int] = []

    @property
    def line(self) -> int:
        return self.parser.CurrentLineNumber

    def start(self, element: str, attributes: dict[str, str]) -> None:
        self._silence_bytes = 0
        if element in _MOVING:
            if self._usable:
                self._moving(element, attributes)
        elif element == "timestep":
            self._timestep(attributes)
        elif not self._depth_seen and element != "fcd-export":
            raise TraceError(self.bad.file, self.line, f"the XML is <{element[:40]}>, not SUMO's <fcd-export>")
        self._depth_seen = True

    def comment(self, text: str) -> None:
        # SUMO writes its configuration into a comment. Unless it says there that x and y are degrees, they are metres.
        if self.geographic is None and ("<sumoConfiguration" in text or "fcd-output" in text):
            self.geographic = _GEOGRAPHIC.search(text) is not None

    def entity(self, *_: object) -> None:
        raise TraceError(self.bad.file, self.line, "declares XML entities, which floating car data never does")

    def check_silence(self, fed_bytes: int) -> None:
        self._silence_bytes += fed_bytes
        if self._silence_bytes > _LONGEST_SILENCE_BYTES:
            raise TraceError(self.bad.file, self.line, f"no element in {_LONGEST_SILENCE_BYTES >> 20} MB: not FCD")

    def _timestep(self, attributes: dict[str, str]) -> None:
        self._usable = False
        try:
            if "time" not in attributes:
                raise ValueError("<timestep> has no time")
            time_s = time_in(attributes["time"])
            if self._time_s is not None and time_s <= self._time_s:
                raise ValueError(f"time runs backwards: {time_s:g} after {self._time_s:g}")
        except ValueError as error:
            self.bad.add(self.line, str(error))
            return
        self._time_s, self._usable = time_s, True
        self._step += 1

    def _moving(self, element: str, attributes: dict[str, str]) -> None:
        try:
            name, x, y = name_in(attributes["id"]), metres_in(attributes["x"], "x"), metres_in(attributes["y"], "y")
            if self.geographic and not (abs(x) <= 180.0 and abs(y) <= 90.0):
                raise ValueError(f"longitude {x:g}, latitude {y:g} is outside the valid range")
            node = self.fixes.number(name)
            if node == len(self._last_step):
                self._last_step.append(-1)
            if self._last_step[node] == self._step:
                raise ValueError(f"{element} {name!r} appears twice in one time step")
        except KeyError as error:
            self.bad.add(self.line, f"<{element}> has no {error.args[0]}")
            return
        except ValueError as error:
            self.bad.add(self.line, str(error))
            return
        assert self._time_s is not None
        if self.geographic is None and self.units.could_be_degrees:
            self.units.add(node, self._time_s, x, y, _speed_mps(attributes.get("speed")))
        self.fixes.add(node, self._time_s, x, y, fresh=self._last_step[node] != self._step - 1)
        self._last_step[node] = self._step


def _speed_mps(text: str | None) -> float | None:
    try:
        return None if text is None else number_in(text, "speed", PLACE_LIMIT_M)
    except ValueError:
        return None
