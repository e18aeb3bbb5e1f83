"""What of a trace a scenario uses: which server, how much of its time, and how many of its contacts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wayfare.contacts.draw import plan_from_meetings
from wayfare.contacts.pairs import pair_contacts
from wayfare.mobility import Meetings, Motion
from wayfare.mobility.traces import Selection, Trace, everyone_with
from wayfare.scenario import Scenario
from wayfare.scenario.mobility import TraceMobility


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceUse:
    """A trace as a run uses it. Contacts are those with the server, each counted once however often it is repeated."""

    file: str
    format: str
    server: str
    devices: int
    nodes: int  # of the whole trace, the server included
    start_s: float
    used_s: float  # without repetition
    repeated: bool
    duration_s: float  # of the whole trace
    contacts_used: int
    contacts_dropped: int  # with nodes that are no devices, or outside the time used
    lines_skipped: int


def trace_use(scenario: Scenario) -> TraceUse | None:
    """What the scenario uses of its trace; None where mobility is no trace."""
    spec = scenario.mobility
    if not isinstance(spec, TraceMobility):
        return None
    trace = Trace(spec, range_m=scenario.radio.range_m)
    return _use(trace, scenario.fleet.devices, scenario.duration_s, trace.fingerprint())


# Runs of several schemes and seeds share a trace; a file that changed has another fingerprint.
@lru_cache(maxsize=8)
def _use(trace: Trace, devices: int, duration_s: float, fingerprint: tuple[int, int]) -> TraceUse:
    spec, recording = trace.spec, trace.recording()
    used_s = min(duration_s, recording.duration_s - spec.start_s)
    chosen = trace.selection(devices, used_s)
    used = _contacts(chosen, trace.range_m)
    whole = _contacts(everyone_with(recording, chosen.server), trace.range_m)
    return TraceUse(
        file=spec.file,
        format=recording.format,
        server=chosen.server,
        devices=devices,
        nodes=len(recording.names),
        start_s=spec.start_s,
        used_s=used_s,
        repeated=duration_s > used_s,
        duration_s=recording.duration_s,
        contacts_used=used,
        contacts_dropped=whole - used,
        lines_skipped=recording.skipped,
    )


def _contacts(chosen: Selection, range_m: float) -> int:
    """How many contacts a selection has with its server."""
    content: Motion | Meetings = chosen.content
    if isinstance(content, Motion):
        return sum(len(contacts) for contacts in pair_contacts(content, range_m, all_pairs=False))
    return len(plan_from_meetings(content, range_m, chosen.duration_s, seed=0).with_server())
