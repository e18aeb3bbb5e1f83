"""The contact plan: a columnar table of contacts, shared by all schemes, and its upload opportunities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.mobility import SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactPlan:
    """Every contact of a fleet, sorted by device and then by start.

    ``peer`` is ``SERVER`` or, for a contact between two devices, the one with the larger number. ``distance_m`` is the
    distance at one random instant of the contact: the distance at which its channel is drawn.
    """

    devices: int
    duration_s: float
    device: Ints
    peer: Ints
    start_s: Floats
    end_s: Floats
    distance_m: Floats

    def __len__(self) -> int:
        return len(self.device)

    def with_server(self) -> ContactPlan:
        """The contacts between a device and the server."""
        return self.take(self.peer == SERVER)

    def take(self, rows: np.ndarray) -> ContactPlan:
        """The plan of some rows, by mask or by index."""
        return ContactPlan(
            devices=self.devices,
            duration_s=self.duration_s,
            device=self.device[rows],
            peer=self.peer[rows],
            start_s=self.start_s[rows],
            end_s=self.end_s[rows],
            distance_m=self.distance_m[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunities:
    """The upload opportunities of a plan, sorted by round and then by device; at most one for each pair.

    A contact counts in the round in which it starts, with its whole length, and contacts of a device that start in the
    same round count together. Rounds are 1 .. R.
    """

    round: Ints
    device: Ints
    contact_s: Floats
    distance_m: Floats

    def __len__(self) -> int:
        return len(self.round)


def opportunities(plan: ContactPlan, round_s: float, rounds: int) -> Opportunities:
    """The upload opportunities of a plan's contacts with the server, one for each device and round."""
    plan = plan.with_server()
    number = np.floor(plan.start_s / round_s).astype(np.int64) + 1
    inside = number <= rounds
    plan, number = plan.take(inside), number[inside]
    length_s = plan.end_s - plan.start_s
    # Within a group the longest contact comes first: its distance stands for the group.
    order = np.lexsort((-length_s, plan.device, number))
    key = number[order] * plan.devices + plan.device[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.empty(0, dtype=np.int64)
    return Opportunities(
        round=number[order][first],
        device=plan.device[order][first],
        contact_s=np.add.reduceat(length_s[order], first) if len(first) else np.empty(0),
        distance_m=plan.distance_m[order][first],
    )
