"""Devices that meet each other: what a scheme that relays adds to the world, drawn for such schemes alone."""

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
from wayfare.world.draw import World, print_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Opportunities of devices with each other, and their channels."""

    meets: PeerOpportunities
    gains_per_watt: Floats


@lru_cache(maxsize=2)
def draw_peers(scenario: Scenario, seed: int) -> Peers:
    """The meetings of a scenario's devices; a model in which devices meet nobody but the server is refused."""
    meets = peer_opportunities(draw_plan(scenario, seed, devices_meet=True), scenario.round_s, scenario.rounds)
    if len(meets) == 0:
        _refuse_without_peers(scenario, seed)
    return Peers(meets=meets, gains_per_watt=peer_gains_per_watt(meets, scenario.radio, seed))


def peers_fingerprint(world: World) -> dict[str, str]:
    """What `fingerprint` says of a world, for what relays add to it."""
    peers = draw_peers(world.scenario, world.seed)
    meets = peers.meets
    columns = (meets.round, meets.device, meets.peer, meets.contact_s, meets.distance_m, peers.gains_per_watt)
    return {"meetings of devices": print_of(columns)}


def _refuse_without_peers(scenario: Scenario, seed: int) -> None:
    spec = scenario.mobility
    drawn = mobility.from_spec(spec, scenario.radio.range_m).draw(scenario.fleet.devices, scenario.duration_s, seed)
    # With motion devices could have met, and did not.
    if isinstance(drawn, Meetings):
        field, value = (
            ("mobility.file", spec.file) if isinstance(spec, TraceMobility) else ("mobility.model", spec.model)
        )
        raise ScenarioError(
            field,
            value,
            "devices meet only the server in it, and a scheme that relays needs devices that meet each other: take a "
            "model or a trace with positions, or a list that has contacts between devices",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A device in a round: whom it may turn to, the best first, each with the row of their opportunity."""

    device: int
    interval: int  # the round of its last contact with the server
    peers: list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Opportunities at which a device may want something of a peer, sorted by round, device and then preference."""

    round: Ints
    device: Ints
    interval: Ints
    peer: Ints
    row: Ints

    def of(self, round_: int) -> list[Wish]:
        """The wishes of a round, in the order of the devices."""
        first, last = np.searchsorted(self.round, [round_, round_ + 1])
        found: dict[int, Wish] = {}
        for place in range(int(first), int(last)):
            device = int(self.device[place])
            if device not in found:
                found[device] = Wish(device=device, interval=int(self.interval[place]), peers=[])
            found[device].peers.append((int(self.peer[place]), int(self.row[place])))
        return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Who may relay when: all that follows from the contact plan and the windows alone."""

    uploads: Candidates  # device: the owner of an update; peer: one that meets the server sooner
    downloads: Candidates  # device: one that may take a newer model; peer: one that may have it

    def rounds_of(self, device: int) -> Ints:
        """The rounds in which the local model of a device may be looked at or replaced."""
        rounds = [candidates.round[candidates.device == device] for candidates in (self.uploads, self.downloads)]
        return np.unique(np.concatenate(rounds))


def make_timetable(world: World, peers: Peers, rules: Relays) -> Timetable:
    """An upload goes to the device that meets the server soonest, and sooner than the owner itself.

    That is taken from the contact plan: devices know their own next contact, and tell each other.
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
    """The last contact of a device with the server before a round (0: none), and its next from it on (R + 1: none)."""
    width = rounds + 2
    contacts = np.concatenate([[-1], np.sort(meets.device * width + meets.round), [np.iinfo(np.int64).max]])
    place = np.searchsorted(contacts, device * width + round_)
    before, after = contacts[place - 1], contacts[place]
    return (
        np.where(before // width == device, before % width, 0),
        np.where(after // width == device, after % width, rounds + 1),
    )
