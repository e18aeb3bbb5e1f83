"""SUMO floating car data: ``<fcd-export><timestep time=".."><vehicle id x y/>``, read as a stream.

The document is never held: what stays in memory is four numbers for each position.
"""

from __future__ import annotations

from typing import IO
from xml.parsers import expat

from wayfare.errors import TraceError
from wayfare.mobility.traces.reading import DAMAGED, BadLines, name_in, place_in, time_in
from wayfare.mobility.traces.recording import Fixes, Recording, motion_recording

_CHUNK_BYTES = 1 << 16
# A parser keeps an unfinished token whole; no real file goes this far without an element.
_LONGEST_SILENCE_BYTES = 1 << 24
_MOVING = frozenset({"vehicle", "person"})


def read_sumo(stream: IO[bytes], bad: BadLines, *, max_gap_s: float) -> Recording:
    """The motion of all vehicles and persons; one that misses a time step is absent until it appears again."""
    reader = _Reader(bad)
    try:
        while True:
            chunk = stream.read(_CHUNK_BYTES)
            reader.parser.Parse(chunk, not chunk)
            if not chunk:
                break
            reader.check_silence(len(chunk))
    except DAMAGED as error:
        bad.add(reader.line, f"the data is damaged or cut short: {error}")
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        truncated = reason in ("no element found", "unclosed token")
        bad.add(error.lineno, f"the XML ends in the middle ({reason})" if truncated else f"not XML: {reason}")
    except (LookupError, ValueError) as error:
        bad.add(reader.line, f"not XML: {error}")
    return motion_recording(
        reader.fixes, bad, format="sumo-fcd", geographic=reader.geographic, max_gap_s=max_gap_s, max_speed_mps=None
    )


class _Reader:
    """The handlers of the parser and what they remember: the time step under way and who was in which."""

    def __init__(self, bad: BadLines) -> None:
        self.bad, self.fixes = bad, Fixes()
        self.geographic = False
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
        # SUMO writes its configuration into a comment; it says there that x and y are degrees.
        if 'fcd-output.geo value="true"' in text:
            self.geographic = True

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
                raise ValueError("a <timestep> without time")
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
            name, x, y = name_in(attributes["id"]), place_in(attributes["x"], "x"), place_in(attributes["y"], "y")
            if self.geographic and not (abs(x) <= 180.0 and abs(y) <= 90.0):
                raise ValueError(f"longitude {x:g}, latitude {y:g} is no place on earth")
            node = self.fixes.number(name)
            if node == len(self._last_step):
                self._last_step.append(-1)
            if self._last_step[node] == self._step:
                raise ValueError(f"{element} {name!r} twice in one time step")
        except KeyError as error:
            self.bad.add(self.line, f"a <{element}> without {error.args[0]}")
            return
        except ValueError as error:
            self.bad.add(self.line, str(error))
            return
        assert self._time_s is not None
        self.fixes.add(node, self._time_s, x, y, fresh=self._last_step[node] != self._step - 1)
        self._last_step[node] = self._step
