"""Contacts between devices. They are drawn only for schemes that relay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wayfare import mobility
from wayfare.arrays import Bools, Floats, Ints
from wayfare.contacts import Opportunities, PeerOpportunities, draw_plan, peer_opportunities
from wayfare.errors import ScenarioError
from wayfare.mobility import Meetings
from wayfare.radio import peer_gains_per_watt
from wayfare.scenario import Scenario
from wayfare.scenario.exchange import Relays
from wayfare.scenario.mobility import TraceMobility
from wayfare.world.draw import World, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Contacts between devices and their channels."""

    meets: PeerOpportunities
    gains_per_watt: Floats


@lru_cache(maxsize=2)
def draw_peers(scenario: Scenario, seed: int) -> Peers:
    """Draw the contacts between devices; raise ScenarioError if the mobility has only contacts with the server."""
    meets = peer_opportunities(draw_plan(scenario, seed, devices_meet=True), scenario.round_s, scenario.rounds)
    if len(meets) == 0:
        _reject_missing_peers(scenario, seed)
    return Peers(meets=meets, gains_per_watt=peer_gains_per_watt(meets, scenario.radio, seed))


def peer_digests(world: World) -> dict[str, str]:
    """Like `world_digests`, for the contacts between devices."""
    peers = draw_peers(world.scenario, world.seed)
    meets = peers.meets
    columns = (meets.round, meets.device, meets.peer, meets.contact_s, meets.distance_m, peers.gains_per_watt)
    return {"meetings of devices": digest(columns)}


def _reject_missing_peers(scenario: Scenario, seed: int) -> None:
    spec = scenario.mobility
    drawn = mobility.from_spec(spec, scenario.radio.range_m).draw(scenario.fleet.devices, scenario.duration_s, seed)
    # With motion, devices could have met and did not: this is valid.
    if isinstance(drawn, Meetings):
        field, value = (
            ("mobility.file", spec.file) if isinstance(spec, TraceMobility) else ("mobility.model", spec.model)
        )
        raise ScenarioError(
            field,
            value,
            "has no contacts between devices, which a scheme with relays needs; use a model or trace with positions, "
            "or a list with contacts between devices",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A device that may use a relay in a round: its possible peers, the best first, each with its opportunity."""

    device: int
    interval: int  # the round of its last contact with the server
    peers: list[tuple[int, int]]  # (peer, row of the opportunity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Opportunities for relays, sorted by round, device and preference."""

    round: Ints
    device: Ints
    interval: Ints
    peer: Ints
    row: Ints

    def of(self, round_: int) -> list[Wish]:
        """The wishes of a round, in the order of the devices."""
        first, last = np.searchsorted(self.round, [round_, round_ + 1])
        found: dict[int, Wish] = {}
        for index in range(int(first), int(last)):
            device = int(self.device[index])
            if device not in found:
                found[device] = Wish(device=device, interval=int(self.interval[index]), peers=[])
            found[device].peers.append((int(self.peer[index]), int(self.row[index])))
        return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """All possible relays, as far as the contact plan and the windows determine them."""

    uploads: Candidates  # device: owner of an update; peer: a device that meets the server sooner
    downloads: Candidates  # device: may take a newer model; peer: may have it

    def rounds_of(self, device: int) -> Ints:
        """The rounds in which a relay may read or replace the local model of a device."""
        rounds = [candidates.round[candidates.device == device] for candidates in (self.uploads, self.downloads)]
        return np.unique(np.concatenate(rounds))


def make_timetable(world: World, peers: Peers, rules: Relays) -> Timetable:
    """The relays of a world. An update goes to the peer that meets the server soonest, and before its owner does.

    The contact plan gives these times: devices know their own next contact and tell each other.
    """
    meets = peers.meets
    row = np.concatenate([np.arange(len(meets))] * 2)
    round_ = meets.round[row]
    device, peer = np.concatenate([meets.device, meets.peer]), np.concatenate([meets.peer, meets.device])
    last, own_next = _last_and_next(world.meets, device, round_, world.scenario.rounds)
    _, peer_next = _last_and_next(world.meets, peer, round_, world.scenario.rounds)

    def candidates(chosen: Bools, preference: Ints) -> Candidates:
        rows = np.flatnonzero(chosen)
        rows = rows[np.lexsort((peer[rows], preference[rows], device[rows], round_[rows]))]
        return Candidates(round=round_[rows], device=device[rows], interval=last[rows], peer=peer[rows], row=row[rows])

    def inside(after_rounds: int, window_rounds: int) -> Bools:
        age = round_ - last - after_rounds
        return np.asarray((age > 0) & (age <= window_rounds))

    uploads = inside(rules.upload_after_rounds, rules.upload_window_rounds) & (peer_next < own_next)
    # A device that meets the server in the same round gets a newer model there.
    downloads = inside(rules.download_after_rounds, rules.download_window_rounds) & (own_next > round_)
    return Timetable(
        uploads=candidates(uploads & (rules.uploads_per_interval > 0), peer_next),
        downloads=candidates(downloads & (rules.downloads_per_interval > 0), np.zeros_like(peer)),
    )


def _last_and_next(meets: Opportunities, device: Ints, round_: Ints, rounds: int) -> tuple[Ints, Ints]:
    """A device's last contact with the server before a round (0: none), and its next in or after it (R + 1: none)."""
    width = rounds + 2
    contacts = np.concatenate([[-1], np.sort(meets.device * width + meets.round), [np.iinfo(np.int64).max]])
    index = np.searchsorted(contacts, device * width + round_)
    before, after = contacts[index - 1], contacts[index]
    return (
        np.where(before // width == device, before % width, 0),
        np.where(after // width == device, after % width, rounds + 1),
    )
