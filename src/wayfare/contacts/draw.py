"""From a scenario, a motion or a list of meetings to a contact plan."""

from __future__ import annotations

import numpy as np

from wayfare import mobility
from wayfare.contacts.extract import contact_intervals
from wayfare.contacts.plan import ContactPlan
from wayfare.mobility import SERVER, Meetings, Motion
from wayfare.scenario import Scenario
from wayfare.streams import Stream, generator


def draw_plan(scenario: Scenario, seed: int) -> ContactPlan:
    """The contacts of a scenario's devices with its server; the same for every scheme."""
    drawn = mobility.from_spec(scenario.mobility).draw(scenario.fleet.devices, scenario.duration_s, seed)
    if isinstance(drawn, Motion):
        return plan_from_motion(drawn, scenario.radio.range_m, scenario.duration_s, seed)
    return plan_from_meetings(drawn, scenario.radio.range_m, scenario.duration_s, seed)


def plan_from_motion(motion: Motion, range_m: float, duration_s: float, seed: int) -> ContactPlan:
    """Contacts of every device with the server, the last node of a motion."""
    devices = motion.nodes - 1
    starts, ends, distances, counts = [], [], [], []
    for device in range(devices):
        start_s, end_s = contact_intervals(motion, device, devices, range_m)
        instant_s = start_s + (end_s - start_s) * generator(seed, Stream.CONTACT_DISTANCE, device).random(len(start_s))
        apart_m = motion.positions_m(device, instant_s) - motion.positions_m(devices, instant_s)
        starts.append(start_s)
        ends.append(end_s)
        distances.append(np.hypot(apart_m[:, 0], apart_m[:, 1]))
        counts.append(len(start_s))
    owner = np.repeat(np.arange(devices, dtype=np.int64), counts)
    return ContactPlan(
        devices=devices,
        duration_s=duration_s,
        device=owner,
        peer=np.full(len(owner), SERVER, dtype=np.int64),
        start_s=np.concatenate(starts),
        end_s=np.concatenate(ends),
        distance_m=np.concatenate(distances),
    )


def plan_from_meetings(meetings: Meetings, range_m: float, duration_s: float, seed: int) -> ContactPlan:
    """A plan of contacts known beforehand; a distance that is not known is uniform in the disc of the radio's range."""
    order = np.lexsort((meetings.start_s, meetings.device))
    device = meetings.device[order]
    if meetings.distance_m is not None:
        distance_m = meetings.distance_m[order]
    else:
        counts = np.bincount(device, minlength=meetings.devices)
        distance_m = np.concatenate(
            [
                range_m * np.sqrt(generator(seed, Stream.CONTACT_DISTANCE, owner).random(count))
                for owner, count in enumerate(counts)
            ]
        )
    return ContactPlan(
        devices=meetings.devices,
        duration_s=duration_s,
        device=device,
        peer=meetings.peer[order],
        start_s=meetings.start_s[order],
        end_s=meetings.end_s[order],
        distance_m=distance_m,
    )
