"""Exponential contacts: an alternating renewal process for each device (Section III-B)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility.base import SERVER, Meetings
from wayfare.scenario.mobility import ExponentialMobility
from wayfare.streams import Stream, generator

# Cycles are drawn in blocks of a fixed size, so that a longer run begins with the same contacts as a shorter one.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Exponential:
    """Contact ~ exp(mean c), inter-contact ~ exp(mean lambda), in contact at the start with c / (c + lambda)."""

    spec: ExponentialMobility

    def draw(self, devices: int, duration_s: float, seed: int) -> Meetings:
        """The contacts of every device with the server; no device meets another."""
        contacts = [self._contacts(seed, device, duration_s) for device in range(devices)]
        counts = [len(start) for start, _ in contacts]
        owner = np.repeat(np.arange(devices, dtype=np.int64), counts)
        return Meetings(
            devices=devices,
            device=owner,
            peer=np.full(len(owner), SERVER, dtype=np.int64),
            start_s=np.concatenate([start for start, _ in contacts]),
            end_s=np.concatenate([end for _, end in contacts]),
        )

    def _contacts(self, seed: int, device: int, duration_s: float) -> tuple[Floats, Floats]:
        mean_contact_s, mean_gap_s = self.spec.contact_s, self.spec.inter_contact_s
        rng = generator(seed, Stream.CONTACT_TIMES, device)
        # Exponential times have no memory, so the stationary process needs only its first state drawn.
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
