"""Exponential contacts: an alternating renewal process for each device (Section III-B)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.errors import ScenarioError
from wayfare.mobility.base import SERVER, Meetings
from wayfare.scenario.mobility import ExponentialMobility
from wayfare.streams import Stream, generator

# Cycles are drawn in blocks of a fixed size, so that a longer run begins with the same contacts as a shorter one.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Exponential:
    """Contact ~ exp(mean c), inter-contact ~ exp(mean lambda), in contact at time 0 with chance c / (c + lambda)."""

    spec: ExponentialMobility

    def draw(self, devices: int, duration_s: float, seed: int) -> Meetings:
        """The contacts of every device with the server. Devices do not meet each other."""
        mean_contact_s = _per_device("contact_s", self.spec.contact_s, devices)
        mean_gap_s = _per_device("inter_contact_s", self.spec.inter_contact_s, devices)
        contacts = []
        for device, means_s in enumerate(zip(mean_contact_s, mean_gap_s, strict=True)):
            contacts.append(_contacts(generator(seed, Stream.CONTACT_TIMES, device), *means_s, duration_s))
        counts = [len(start) for start, _ in contacts]
        owner = np.repeat(np.arange(devices, dtype=np.int64), counts)
        return Meetings(
            devices=devices,
            device=owner,
            peer=np.full(len(owner), SERVER, dtype=np.int64),
            start_s=np.concatenate([start for start, _ in contacts]),
            end_s=np.concatenate([end for _, end in contacts]),
        )


def _per_device(field: str, mean_s: float | tuple[float, ...], devices: int) -> tuple[float, ...]:
    """One mean per device, from one for all or a list."""
    if not isinstance(mean_s, tuple):
        return (mean_s,) * devices
    if len(mean_s) != devices:
        rule = f"must have one entry for each of the {devices} devices, not {len(mean_s)}"
        raise ScenarioError(f"mobility.{field}", list(mean_s), rule)
    return mean_s


def _contacts(
    rng: np.random.Generator, mean_contact_s: float, mean_gap_s: float, duration_s: float
) -> tuple[Floats, Floats]:
    # Exponential times have no memory, so only the first state of the stationary process must be drawn.
    starts_in_contact = rng.random() < mean_contact_s / (mean_contact_s + mean_gap_s)
    starts, ends, clock_s = [], [], 0.0
    while clock_s < duration_s:
        gap_s, contact_s = rng.exponential([mean_gap_s, mean_contact_s], size=(_BLOCK, 2)).T
        if starts_in_contact:
            gap_s[0], starts_in_contact = 0.0, False
        end_s = clock_s + np.cumsum(gap_s + contact_s)
        starts.append(end_s - contact_s)
        ends.append(end_s)
        clock_s = float(end_s[-1])
    start_s, end_s = np.concatenate(starts), np.concatenate(ends)
    inside = start_s < duration_s
    return start_s[inside], np.minimum(end_s[inside], duration_s)
