"""The contact plan: a columnar table of contacts, shared by all schemes, and its opportunities by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import InputError
from wayfare.mobility import SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactPlan:
    """Every contact of a fleet, sorted by device and then by start.

    ``peer`` is ``SERVER`` or, for a contact between two devices, the one with the larger number. ``distance_m`` is the
    distance at one random instant of the contact, at which its channel is drawn. ``names`` are those of
    the devices and, last, of the server, if a trace has names.
    """

    devices: int
    duration_s: float
    device: Ints
    peer: Ints
    start_s: Floats
    end_s: Floats
    distance_m: Floats
    names: tuple[str, ...] = ()

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
            names=self.names,
        )

    def lasting(self, min_contact_s: float) -> ContactPlan:
        """The contacts of at least this length."""
        return self.take(self.end_s - self.start_s >= min_contact_s) if min_contact_s > 0 else self

    def between(self, begin_s: float, end_s: float) -> ContactPlan:
        """The plan of a time window, which then starts at time 0. Contacts are cut at its ends."""
        if not 0 <= begin_s < end_s <= self.duration_s:
            raise InputError(
                f"the window from {begin_s:g} to {end_s:g} s is not inside the plan of {self.duration_s:g} s"
            )
        start_s, until_s = np.maximum(self.start_s, begin_s) - begin_s, np.minimum(self.end_s, end_s) - begin_s
        rows = np.flatnonzero(until_s > start_s)
        return replace(self.take(rows), duration_s=end_s - begin_s, start_s=start_s[rows], end_s=until_s[rows])

    def repeated(self, duration_s: float) -> ContactPlan:
        """Repeat the plan up to a duration. Contacts that touch across a seam become one."""
        times = max(math.ceil(duration_s / self.duration_s), 1)
        plays = [self._later(play * self.duration_s, (play + 1) * self.duration_s) for play in range(times)]
        return merge(plays).between(0.0, duration_s)

    def followed_by(self, later: ContactPlan) -> ContactPlan:
        """Append another plan of the same fleet. Contacts that touch across the seam become one."""
        return merge([self, later._later(self.duration_s, self.duration_s + later.duration_s)])

    def _later(self, by_s: float, until_s: float) -> ContactPlan:
        """Shift all times. Contacts that lasted to the end of the plan last exactly to the new end."""
        return replace(
            self,
            duration_s=until_s,
            start_s=self.start_s + by_s,
            end_s=np.where(self.end_s >= self.duration_s, until_s, self.end_s + by_s),
        )


def merge(plans: Sequence[ContactPlan]) -> ContactPlan:
    """Merge plans of one fleet. Contacts of a pair that overlap or touch become one.

    A merged contact keeps the distance of its longest part.
    """
    if len({plan.devices for plan in plans}) != 1:
        sizes = ", ".join(str(plan.devices) for plan in plans) or "none"
        raise InputError(f"plans to merge must be of one fleet; these have {sizes} devices")
    if len({plan.names for plan in plans}) != 1:
        raise InputError("plans to merge must be of one fleet; these have different device names")
    every = ContactPlan(
        devices=plans[0].devices,
        duration_s=max(plan.duration_s for plan in plans),
        device=np.concatenate([plan.device for plan in plans]),
        peer=np.concatenate([plan.peer for plan in plans]),
        start_s=np.concatenate([plan.start_s for plan in plans]),
        end_s=np.concatenate([plan.end_s for plan in plans]),
        distance_m=np.concatenate([plan.distance_m for plan in plans]),
        names=plans[0].names,
    )
    every = every.take(np.lexsort((every.end_s, every.start_s, every.peer, every.device)))
    group = _overlapping(every.device, every.peer, every.start_s, every.end_s)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    longest = np.lexsort((every.start_s - every.end_s, group))[first]
    united = replace(
        every.take(first),
        end_s=np.maximum.reduceat(every.end_s, first) if len(first) else every.end_s,
        distance_m=every.distance_m[longest],
    )
    return united.take(np.lexsort((united.start_s, united.device)))


def _overlapping(device: Ints, peer: Ints, start_s: Floats, end_s: Floats) -> Ints:
    """Number the groups of contacts of a pair that overlap or touch; rows are sorted by pair, then start."""
    new_pair = np.append(True, (device[1:] != device[:-1]) | (peer[1:] != peer[:-1]))[: len(device)]
    group, number, latest_s = [], -1, -math.inf
    for new, start, end in zip(new_pair.tolist(), start_s.tolist(), end_s.tolist(), strict=True):
        if new or start > latest_s:
            number, latest_s = number + 1, end
        latest_s = max(latest_s, end)
        group.append(number)
    return np.array(group, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opportunities:
    """The contacts of a plan with the server by round, sorted by round, then device; at most one per device and round.

    A contact counts in the round in which it starts, with its whole length. Contacts of a device that start in the
    same round are added up. Rounds are 1 .. R.
    """

    round: Ints
    device: Ints
    contact_s: Floats
    distance_m: Floats

    def __len__(self) -> int:
        return len(self.round)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOpportunities:
    """The contacts between devices by round, sorted by round and pair, counted as in `Opportunities`."""

    round: Ints
    device: Ints
    peer: Ints  # larger than `device`
    contact_s: Floats
    distance_m: Floats

    def __len__(self) -> int:
        return len(self.round)


def opportunities(plan: ContactPlan, round_s: float, rounds: int) -> Opportunities:
    """A plan's contacts with the server by round, one for each device and round."""
    found = _in_rounds(plan.with_server(), round_s, rounds)
    return Opportunities(round=found.round, device=found.device, contact_s=found.contact_s, distance_m=found.distance_m)


def peer_opportunities(plan: ContactPlan, round_s: float, rounds: int) -> PeerOpportunities:
    """A plan's contacts between devices by round, one for each pair and round."""
    return _in_rounds(plan.take(plan.peer != SERVER), round_s, rounds)


def _in_rounds(plan: ContactPlan, round_s: float, rounds: int) -> PeerOpportunities:
    """Group contacts by pair and the round in which they start."""
    number = np.floor(plan.start_s / round_s).astype(np.int64) + 1
    inside = number <= rounds
    plan, number = plan.take(inside), number[inside]
    length_s = plan.end_s - plan.start_s
    # The longest contact of a group comes first and gives the group its distance.
    order = np.lexsort((-length_s, plan.peer, plan.device, number))
    keys = np.stack([number[order], plan.device[order], plan.peer[order]])
    first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(order)])
    return PeerOpportunities(
        round=number[order][first],
        device=plan.device[order][first],
        peer=plan.peer[order][first],
        contact_s=np.add.reduceat(length_s[order], first) if len(first) else np.empty(0),
        distance_m=plan.distance_m[order][first],
    )
