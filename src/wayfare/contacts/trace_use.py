"""The part of a trace that a scenario uses: server, devices, time and contacts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wayfare.arrays import Floats
from wayfare.contacts.draw import contacts_in
from wayfare.mobility.traces import Selection, Trace, all_nodes
from wayfare.scenario import Scenario
from wayfare.scenario.exchange import Contacts
from wayfare.scenario.mobility import TraceMobility


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceUse:
    """A trace as a run uses it. Contacts are those with the server; repeated ones count once."""

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
    contacts_dropped: int  # with unused nodes, outside the time used, or too short
    lines_skipped: int
    contacts_too_short: int = 0  # part of those dropped: with used devices, in the time used
    min_contact_s: float = 0.0
    max_exchange_s: float | None = None
    device_names: tuple[str, ...] = ()


def trace_use(scenario: Scenario) -> TraceUse | None:
    """The use of the scenario's trace; None if its mobility is not a trace."""
    spec = scenario.mobility
    if not isinstance(spec, TraceMobility):
        return None
    trace = Trace(spec, range_m=scenario.radio.range_m)
    return _use(trace, scenario.fleet.devices, scenario.duration_s, scenario.contacts, trace.fingerprint())


def device_names(scenario: Scenario) -> tuple[str, ...]:
    """The devices' names in the trace, in order; empty if the mobility is not a trace."""
    spec = scenario.mobility
    if not isinstance(spec, TraceMobility):
        return ()
    trace = Trace(spec, range_m=scenario.radio.range_m)
    return trace.selection(scenario.fleet.devices, scenario.duration_s).devices


# Runs of several schemes and seeds share a trace; a file that changed has another fingerprint.
@lru_cache(maxsize=8)
def _use(trace: Trace, devices: int, duration_s: float, rules: Contacts, fingerprint: tuple[int, int]) -> TraceUse:
    spec, recording = trace.spec, trace.recording()
    used_s = min(duration_s, recording.duration_s - spec.start_s)
    chosen = trace.selection(devices, used_s)
    lengths_s = _lengths_s(chosen, trace.range_m)
    too_short = int((lengths_s < rules.min_contact_s).sum())
    used = len(lengths_s) - too_short
    whole = len(_lengths_s(all_nodes(recording, chosen.server), trace.range_m))
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
        contacts_too_short=too_short,
        min_contact_s=rules.min_contact_s,
        max_exchange_s=rules.max_exchange_s,
        device_names=chosen.devices,
    )


def _lengths_s(chosen: Selection, range_m: float) -> Floats:
    """The length of each contact of a selection with its server, in seconds."""
    plan = contacts_in(chosen.content, range_m, chosen.duration_s, seed=0, devices_meet=False)
    return plan.end_s - plan.start_s
