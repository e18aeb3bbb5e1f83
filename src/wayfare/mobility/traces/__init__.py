"""Traces: recorded motion and contacts in common formats."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from wayfare.errors import ScenarioError, TraceError
from wayfare.mobility.base import Meetings, Motion
from wayfare.mobility.traces.read import FORMATS, detect, read_recording
from wayfare.mobility.traces.recording import Recording
from wayfare.mobility.traces.roadside import with_roadside_unit
from wayfare.mobility.traces.selection import Selection, all_nodes, select
from wayfare.mobility.traces.window import cut, repeat
from wayfare.scenario.mobility import NodeServer, RoadsideUnit, TraceMobility

__all__ = ["FORMATS", "Recording", "Selection", "Trace", "all_nodes", "detect", "read_recording", "select"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded motion or contacts. It does not depend on the seed.

    Server and devices are chosen by their contacts within ``range_m``, in the part of the trace that is used.
    """

    spec: TraceMobility
    range_m: float = 100.0

    def draw(self, devices: int, duration_s: float, seed: int) -> Motion | Meetings:
        """The trace from ``start_s`` on, cut at the duration, or repeated up to it with ``repeat``."""
        return self.selection(devices, duration_s).content

    def recording(self) -> Recording:
        """The whole file, read once per process."""
        return _recording(self.spec, self.fingerprint())

    def fingerprint(self) -> tuple[int, int]:
        return _fingerprint(self.spec.file)

    def selection(self, devices: int | None = None, duration_s: float | None = None) -> Selection:
        """As `draw`, with names. The defaults are all nodes and the rest of the trace."""
        spec, recording = self.spec, self.recording()
        left_s = recording.duration_s - spec.start_s
        if left_s <= 0:
            raise ScenarioError("mobility.start_s", spec.start_s, f"the trace lasts only {recording.duration_s:g} s")
        duration_s = left_s if duration_s is None else duration_s
        if duration_s > left_s and not spec.repeat:
            raise ScenarioError(
                "mobility.repeat",
                False,
                f"the scenario lasts {duration_s:g} s but the trace only {left_s:g} s; set mobility.repeat=true to "
                "repeat it, or choose fewer or shorter rounds",
            )
        window_s = min(duration_s, left_s)
        part = cut(recording.content, spec.start_s, spec.start_s + window_s)
        if len(part.start_s) == 0:
            raise ScenarioError("mobility.start_s", spec.start_s, f"no node is present in the {window_s:g} s from here")
        named = spec.server.name if isinstance(spec.server, NodeServer) else "auto"
        chosen = select(
            replace(recording, content=part, duration_s=window_s),
            devices=devices,
            server=None if named == "auto" else named,
            range_m=self.range_m,
        )
        return replace(chosen, duration_s=duration_s, content=repeat(chosen.content, window_s, duration_s))


def _fingerprint(file: str) -> tuple[int, int]:
    """Modification time and size, so that a changed file is read again."""
    try:
        state = Path(file).stat()
    except OSError as error:
        raise TraceError(file, None, f"cannot be opened: {error.strerror}") from None
    except ValueError as error:
        raise TraceError(file, None, f"cannot be opened: {error}") from None
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=4)
def _recording(spec: TraceMobility, fingerprint: tuple[int, int]) -> Recording:
    recording = read_recording(
        spec.file,
        format=spec.format,
        max_gap_s=spec.max_gap_s,
        max_speed_mps=spec.max_speed_mps,
        box_m=spec.box_m,
        coordinates=spec.coordinates,
        lenient=spec.lenient,
    )
    if recording.skipped:
        _log.warning("%s: %s lines skipped; the first: %s", spec.file, recording.skipped, recording.first_skipped)
    return with_roadside_unit(recording, spec.server) if isinstance(spec.server, RoadsideUnit) else recording
