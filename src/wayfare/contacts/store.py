"""Save and load contact plans (``mobility.format = "plan"``)."""

from __future__ import annotations

from pathlib import Path

from wayfare.contacts.plan import ContactPlan
from wayfare.mobility import Meetings
from wayfare.mobility.traces.saved import load_meetings, save_meetings


def save_plan(plan: ContactPlan, path: Path | str) -> None:
    """Write a plan to an ``.npz`` file atomically."""
    save_meetings(
        Path(path),
        Meetings(
            devices=plan.devices,
            device=plan.device,
            peer=plan.peer,
            start_s=plan.start_s,
            end_s=plan.end_s,
            distance_m=plan.distance_m,
        ),
        plan.duration_s,
        plan.names,
    )


def load_plan(path: Path | str) -> ContactPlan:
    """Load a plan and check every array. A damaged file raises TraceError."""
    meetings, duration_s, names = load_meetings(Path(path))
    assert meetings.distance_m is not None
    return ContactPlan(
        devices=meetings.devices,
        duration_s=duration_s,
        device=meetings.device,
        peer=meetings.peer,
        start_s=meetings.start_s,
        end_s=meetings.end_s,
        distance_m=meetings.distance_m,
        names=names,
    )
