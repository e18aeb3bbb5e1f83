"""Draw a contact plan from a scenario, a motion or a list of contacts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wayfare import mobility
from wayfare.arrays import Floats, Ints
from wayfare.contacts.exchanges import split_into_exchanges
from wayfare.contacts.pairs import PairContacts, pair_contacts
from wayfare.contacts.plan import ContactPlan, merge
from wayfare.mobility import SERVER, Meetings, Motion
from wayfare.mobility.extent import reject_oversized
from wayfare.scenario import Scenario
from wayfare.streams import Stream, generator

# Rows after which small parts of a plan are joined.
_LARGE = 1 << 22


class _Columns(NamedTuple):
    device: Ints
    peer: Ints
    start_s: Floats
    end_s: Floats
    distance_m: Floats


def draw_plan(scenario: Scenario, seed: int, *, devices_meet: bool = False) -> ContactPlan:
    """The exchanges of a scenario's devices with the server and, with ``devices_meet``, with each other.

    The plan does not depend on the scheme. An exchange is a contact, or part of one longer than
    `contacts.max_exchange_s`.
    """
    reject_oversized(scenario.mobility, scenario.fleet.devices, scenario.duration_s)
    model = mobility.from_spec(scenario.mobility, scenario.radio.range_m)
    drawn = model.draw(scenario.fleet.devices, scenario.duration_s, seed)
    return plan_from_drawn(drawn, scenario, seed, devices_meet=devices_meet)


def plan_from_drawn(
    drawn: Motion | Meetings, scenario: Scenario, seed: int, *, devices_meet: bool = False
) -> ContactPlan:
    """The exchanges in a drawn motion or list of contacts."""
    plan = contacts_in(drawn, scenario.radio.range_m, scenario.duration_s, seed, devices_meet=devices_meet)
    plan = plan.lasting(scenario.contacts.min_contact_s)
    return split_into_exchanges(plan, scenario.contacts.max_exchange_s, drawn)


def contacts_in(
    drawn: Motion | Meetings, range_m: float, duration_s: float, seed: int, *, devices_meet: bool
) -> ContactPlan:
    """All contacts of a motion or a list, unsplit and of any length."""
    if isinstance(drawn, Motion):
        return plan_from_motion(drawn, range_m, duration_s, seed, devices_meet=devices_meet)
    plan = plan_from_meetings(drawn, range_m, duration_s, seed)
    return plan if devices_meet else plan.with_server()


def plan_from_motion(
    motion: Motion, range_m: float, duration_s: float, seed: int, *, devices_meet: bool = False
) -> ContactPlan:
    """Contacts of every device with the server (the last node) and, with ``devices_meet``, with each other."""
    no_nodes, no_times = np.empty(0, np.int64), np.empty(0)
    small, large, rows = [_Columns(no_nodes, no_nodes, no_times, no_times, no_times)], [], 0
    for plan in plans_from_motion(motion, range_m, duration_s, seed, devices_meet=devices_meet):
        small.append(_Columns(plan.device, plan.peer, plan.start_s, plan.end_s, plan.distance_m))
        rows += len(plan)
        # The memory of many small arrays is not returned when they are freed; that of large ones is.
        if rows > _LARGE:
            large.append([np.concatenate(column) for column in zip(*small, strict=True)])
            small, rows = small[:0], 0
    if small:
        large.append([np.concatenate(column) for column in zip(*small, strict=True)])
    # Join column by column: contacts between devices fill gigabytes.
    distance_m, end_s, start_s, peer, device = (
        np.concatenate([columns.pop() for columns in large]) for _ in _Columns._fields
    )
    return ContactPlan(
        devices=motion.nodes - 1,
        duration_s=duration_s,
        device=device,
        peer=peer,
        start_s=start_s,
        end_s=end_s,
        distance_m=distance_m,
    )


def plans_from_motion(
    motion: Motion, range_m: float, duration_s: float, seed: int, *, devices_meet: bool
) -> Iterator[ContactPlan]:
    """The plan of a motion in parts, some devices at a time, for plans that do not fit into memory."""
    devices = motion.nodes - 1
    shares = np.empty((devices, 0))
    for contacts in pair_contacts(motion, range_m, all_pairs=devices_meet):
        peer = np.where(contacts.other == devices, SERVER, contacts.other)
        number = _number_in_pair(contacts.one, peer)
        if len(number) and number.max() >= shares.shape[1]:
            shares = _shares(seed, devices, 2 * int(number.max()) + 2)
        instant_s = contacts.start_s + (contacts.end_s - contacts.start_s) * _share(shares, contacts.one, peer, number)
        distance_m = _distances_m(motion, contacts, instant_s)
        order = _by_start(contacts.one - contacts.nodes.start, contacts.start_s, len(contacts.nodes), duration_s)
        yield ContactPlan(
            devices=devices,
            duration_s=duration_s,
            device=contacts.one.take(order),
            peer=peer.take(order),
            start_s=contacts.start_s.take(order),
            end_s=contacts.end_s.take(order),
            distance_m=distance_m.take(order),
        )


def plan_from_meetings(meetings: Meetings, range_m: float, duration_s: float, seed: int) -> ContactPlan:
    """The plan of a list of contacts. Unknown distances are drawn uniformly in the disc of the radio's range."""
    by_pair = np.lexsort((meetings.start_s, meetings.peer, meetings.device))
    device, peer = meetings.device[by_pair], meetings.peer[by_pair]
    start_s, end_s = meetings.start_s[by_pair], meetings.end_s[by_pair]
    if meetings.distance_m is not None:
        distance_m = meetings.distance_m[by_pair]
    else:
        number = _number_in_pair(device, peer)
        shares = _shares(seed, meetings.devices, int(number.max(initial=-1)) + 1)
        distance_m = range_m * np.sqrt(_share(shares, device, peer, number))
    order = np.lexsort((start_s, device))
    plan = ContactPlan(
        devices=meetings.devices,
        duration_s=duration_s,
        device=device[order],
        peer=peer[order],
        start_s=start_s[order],
        end_s=end_s[order],
        distance_m=distance_m[order],
    )
    same_pair = (device[1:] == device[:-1]) & (peer[1:] == peer[:-1])
    # Join contacts that span two plays of a repeated trace, or two lines of a file.
    return merge([plan]) if (same_pair & (start_s[1:] <= end_s[:-1])).any() else plan


def _shares(seed: int, devices: int, contacts: int) -> Floats:
    """Uniform numbers for every device, one per contact of a pair. More contacts only append numbers."""
    return np.stack([generator(seed, Stream.CONTACT_DISTANCE, device).random(contacts) for device in range(devices)])


def _share(shares: Floats, device: Ints, peer: Ints, number: Ints) -> Floats:
    """The instant in the nth contact of a pair at which its channel is drawn: w[device, n] (+ w[peer, n] mod 1).

    It is a share of the contact, uniform in [0, 1) and independent for any two contacts. It depends neither on the
    size of the fleet nor on the duration.
    """
    flat, width = shares.ravel(), shares.shape[1]
    share: Floats = flat.take(device * width + number)
    between = np.flatnonzero(peer != SERVER)
    both = share.take(between)
    both += flat.take(peer.take(between) * width + number.take(between))
    both -= both >= 1.0
    share[between] = both
    return share


def _number_in_pair(device: Ints, peer: Ints) -> Ints:
    """Number the contacts of each pair 0, 1, 2, ...; rows are sorted by pair and start."""
    begins = np.ones(len(device), dtype=np.bool_)
    begins[1:] = (device[1:] != device[:-1]) | (peer[1:] != peer[:-1])
    first = np.flatnonzero(begins)
    return np.arange(len(device)) - np.repeat(first, np.diff(np.append(first, len(device))))


def _distances_m(motion: Motion, contacts: PairContacts, instant_s: Floats) -> Floats:
    """The distance of the two nodes of each contact at an instant of it, in metres."""
    if len(contacts) == 0:
        return np.empty(0)
    pieces = np.diff(np.append(contacts.piece, len(contacts.piece_start_s)))
    begun = contacts.piece_start_s <= np.repeat(instant_s, pieces)
    # The instant lies on the last piece that starts before it.
    piece = contacts.piece + np.add.reduceat(begun, contacts.piece, dtype=np.int64) - 1
    one, other = contacts.leg_one.take(piece), contacts.leg_other.take(piece)
    since_one, since_other = instant_s - motion.start_s.take(one), instant_s - motion.start_s.take(other)
    x_m = motion.x_m.take(one) + motion.vx_mps.take(one) * since_one
    x_m -= motion.x_m.take(other) + motion.vx_mps.take(other) * since_other
    y_m = motion.y_m.take(one) + motion.vy_mps.take(one) * since_one
    y_m -= motion.y_m.take(other) + motion.vy_mps.take(other) * since_other
    # Takes half the time of hypot, whose overflow handling is not needed here.
    return np.sqrt(x_m * x_m + y_m * y_m)


def _by_start(device: Ints, start_s: Floats, devices: int, duration_s: float) -> Ints:
    """The stable sort order by device, then start."""
    # A radix sort on rounded numbers first makes the exact sort three times faster.
    rough = (start_s * ((2**16 - 1) / duration_s)).astype(np.uint16)
    order = np.argsort(rough, kind="stable")
    order = order.take(np.argsort(start_s.take(order), kind="stable"))
    if devices > 1:
        order = order.take(np.argsort(device.take(order).astype(np.min_scalar_type(devices)), kind="stable"))
    return order
