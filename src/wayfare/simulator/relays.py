"""Relays: devices in contact carry updates and models for each other (FedMobile)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from wayfare import device as devices
from wayfare.arrays import Ints
from wayfare.device import DeviceState, Meeting, Offer, Terms, Transmission
from wayfare.engine import Shelf, Trainer
from wayfare.methods import Arrival, PeerRule, Upload, send_dense
from wayfare.mobility import SERVER
from wayfare.simulator.events import RelayEvent, RelayKind
from wayfare.sparsify import Sparse
from wayfare.world import Peers, Wish, World, make_timetable

# A remaining share of the budget below this is rounding.
_SPENT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """An update that a relay carries for its owner."""

    relay: int
    owner: int
    round: int  # of the hand-over
    update: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The relays that a device used since its contact with the server in round ``interval``."""

    interval: int = 0
    uploads: int = 0
    downloads: int = 0

    def at(self, interval: int) -> Turn:
        return self if self.interval == interval else Turn(interval=interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A transfer to another device, with the sender's state afterwards."""

    state: DeviceState
    upload: Upload  # with the billed energy
    airtime_s: float
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayState:
    parcels: list[Parcel] = field(default_factory=list)  # by relay, in order of receipt
    turns: list[Turn] = field(default_factory=list)


class Relays:
    """The relays of one run. In each round they come before the contacts with the server."""

    def __init__(
        self, world: World, peers: Peers, rule: PeerRule, *, nothing: Tensor, terms: Terms, shelf: Shelf
    ) -> None:
        self._peers, self._rule, self._rules = peers, rule, rule.rules
        self._nothing, self._terms, self._shelf = nothing, terms, shelf
        self.free = rule.rules.energy == "free"
        self._timetable = make_timetable(world, peers, rule.rules)
        fleet = range(world.scenario.fleet.devices)
        self._parcels: list[list[Parcel]] = [[] for _ in fleet]
        self._turns = [Turn() for _ in fleet]

    def state(self) -> RelayState:
        return RelayState(parcels=list(self.parcels()), turns=list(self._turns))

    def restore(self, state: RelayState) -> None:
        self._turns = list(state.turns)
        self._parcels = [[] for _ in self._turns]
        for parcel in state.parcels:
            self._parcels[parcel.relay].append(parcel)

    def with_meetings(self, observed: Sequence[Ints]) -> list[Ints]:
        """Add the rounds of contacts between devices to the rounds in which local models are needed."""
        return [np.union1d(rounds, self._timetable.rounds_of(device)) for device, rounds in enumerate(observed)]

    def parcels(self) -> Iterator[Parcel]:
        for carried in self._parcels:
            yield from carried

    def exchange(self, round_: int, states: list[DeviceState], trainer: Trainer) -> list[RelayEvent]:
        """The relays of one round, uploads first. Devices give the models that they had at the start of the round."""
        uploads = [
            wish
            for wish in self._timetable.uploads.of(round_)
            if self._turn(wish).uploads < self._rules.uploads_per_interval
        ]
        had = list(states)
        downloads = [
            (wish, newest)
            for wish in self._timetable.downloads.of(round_)
            if self._turn(wish).downloads < self._rules.downloads_per_interval and (newest := self._newest(wish, had))
        ]
        if not uploads and not downloads:
            return []
        trainer.meet(sorted({wish.device for wish in uploads} | {wish.device for wish, _ in downloads}), round_)
        # Time left in each contact: two devices may both transfer in one.
        left_s: dict[int, float] = {}
        events = [self._hand_over(round_, wish, states, trainer, left_s) for wish in uploads]
        for wish, (giver, row) in downloads:
            events.append(self._take_model(round_, wish, giver, row, had[giver], states, trainer, left_s))
        return [event for event in events if event is not None]

    def before_upload(self, device: int, state: DeviceState) -> DeviceState:
        """The state of a relay before its upload. Merged deliveries add its parcels to its update."""
        if self._rules.delivery == "separate" or not self._parcels[device]:
            return state
        memory = state.memory
        for parcel in self._parcels[device]:
            memory = memory + parcel.update
        return replace(state, memory=memory)

    def after_upload(
        self, device: int, before: DeviceState, state: DeviceState, sending: Transmission
    ) -> tuple[DeviceState, list[Arrival], list[RelayEvent]]:
        """Deliver parcels with or after the relay's own upload. A failed upload used up the contact."""
        carried, upload, encounter = self._parcels[device], sending.upload, sending.offer.encounter
        if not carried:
            return state, [], []
        if not upload.completes:
            # The parcels stay parcels and leave the memory.
            return replace(state, memory=before.memory), [], []
        left_s = max(encounter.contact_s - upload.airtime_s, 0.0)
        if self._rules.delivery == "merged":
            self._parcels[device] = []
            return state, [], [_delivered(parcel, encounter.round, left_s) for parcel in carried]
        return self._deliver(device, state, sending.offer, left_s)

    def _deliver(
        self, device: int, state: DeviceState, own: Offer, left_s: float
    ) -> tuple[DeviceState, list[Arrival], list[RelayEvent]]:
        """Deliver parcels one by one while they fit, and keep the others."""
        round_, sent, events = own.encounter.round, [], []
        gain = own.encounter.gain_per_watt
        meeting = Meeting(round=round_, contact_s=left_s, gain_per_watt=gain, device=device)
        while self._parcels[device] and left_s > 0:
            parcel = self._parcels[device][0]
            stale = round_ - parcel.round
            meeting = replace(meeting, contact_s=left_s)
            offer = devices.make_offer(state, parcel.update, meeting, self._terms, staleness_rounds=stale)
            upload = devices.decide(offer, self._terms)
            if not devices.is_whole(offer, upload):
                break
            state = devices.pay(offer.state, offer.encounter, upload.energy_joules)
            events.append(_delivered(parcel, round_, left_s, upload.bits, upload.energy_joules))
            left_s -= upload.airtime_s
            everything = torch.arange(len(parcel.update), device=parcel.update.device)
            entries = Sparse(everything, parcel.update)
            sent.append(Arrival(device=parcel.owner, sent=entries, staleness_rounds=stale, round=round_))
            self._parcels[device].pop(0)
        return state, sent, events

    def _hand_over(
        self, round_: int, wish: Wish, states: list[DeviceState], trainer: Trainer, left_s: dict[int, float]
    ) -> RelayEvent | None:
        """Hand the owner's update to a willing relay."""
        owner = wish.device
        willing = [(relay, row) for relay, row in wish.peers if self._takes_parcels(relay, states[relay])]
        if not willing:
            return None
        relay, row = self._rule.relay(willing)
        # The first transfer has the whole contact.
        meeting, state = self._meeting(row, owner), states[owner]
        update, stale = devices.undelivered(state, trainer.model(owner)), round_ - state.received_round
        sent = self._transfer(state, update, meeting, stale)
        if sent is None:
            return None
        state = sent.state
        if sent.completed:
            state = devices.hand_over(state, update)
            state = replace(state, memory=self._shelf.keep(owner, state.memory))
            self._parcels[relay].append(Parcel(relay=relay, owner=owner, round=round_, update=update))
            turn = self._turn(wish)
            self._turns[owner] = replace(turn, uploads=turn.uploads + 1)
        states[owner] = state
        left_s[row] = meeting.contact_s - sent.airtime_s
        return _event("upload", owner, relay, owner, meeting, sent) if sent.airtime_s > 0 else None

    def _take_model(
        self,
        round_: int,
        wish: Wish,
        giver: int,
        row: int,
        given: DeviceState,
        states: list[DeviceState],
        trainer: Trainer,
        left_s: dict[int, float],
    ) -> RelayEvent | None:
        """Take a newer global model, which the giver pays for, and put the device's own update on top."""
        taker = wish.device
        meeting = self._meeting(row, giver)
        meeting = replace(meeting, contact_s=left_s.get(row, meeting.contact_s))
        if meeting.contact_s <= 0:
            return None
        newer_by = given.received_round - states[taker].received_round
        sent = self._transfer(states[giver], given.received - states[taker].received, meeting, newer_by)
        if sent is None:
            return None
        states[giver] = sent.state
        if sent.completed:
            update = devices.undelivered(states[taker], trainer.model(taker))
            states[taker], local = devices.take_model(
                states[taker], update, given.received, given.received_round, self._nothing
            )
            trainer.restart(taker, given.received, local)
            turn = self._turn(wish)
            self._turns[taker] = replace(turn, downloads=turn.downloads + 1)
        return _event("download", giver, taker, SERVER, meeting, sent) if sent.airtime_s > 0 else None

    def _meeting(self, row: int, device: int) -> Meeting:
        meets, gain = self._peers.meets, float(self._peers.gains_per_watt[row])
        contact_s = float(meets.contact_s[row])
        return Meeting(round=int(meets.round[row]), contact_s=contact_s, gain_per_watt=gain, device=device)

    def _transfer(
        self, before: DeviceState, update: Tensor, meeting: Meeting, staleness_rounds: int
    ) -> Transfer | None:
        """Send a whole vector to another device; None if the device skips the contact."""
        offer = devices.make_offer(before, update, meeting, self._terms, staleness_rounds=staleness_rounds)
        if self.free:
            upload = send_dense(offer.encounter, self._terms.link, self._terms.link.max_power_watts)
        else:
            upload = devices.decide(offer, self._terms)
        completed = devices.is_whole(offer, upload)
        if not completed and self._rules.attempts == "fitting":
            return None
        airtime_s = upload.airtime_s
        if self.free:
            # A free transfer changes neither the budget nor the experience with the server.
            upload, state = replace(upload, energy_joules=0.0), before
        else:
            # The pace spreads energy over all airtime, also that with other devices.
            paid = devices.pay(offer.state, offer.encounter, upload.energy_joules)
            state = replace(paid, met_s=paid.met_s + airtime_s)
        return Transfer(state=state, upload=upload, airtime_s=airtime_s, completed=completed)

    def _takes_parcels(self, relay: int, state: DeviceState) -> bool:
        """Whether a device has room for another parcel and, if relays are free, energy to deliver it.

        With billed relays the owner does not check the energy.
        """
        if len(self._parcels[relay]) >= self._rules.parcels_per_relay:
            return False
        is_limited = self.free and self._terms.method.energy_rule in ("greedy", "paced")
        return not is_limited or state.left_joules > _SPENT * state.budget_joules

    def _newest(self, wish: Wish, states: Sequence[DeviceState]) -> tuple[int, int] | None:
        """The peer with a newer model than the device's own, and the row of their contact; None if there is none."""
        giver = self._rule.giver([(peer, states[peer].received_round) for peer, _ in wish.peers])
        row = next(row for peer, row in wish.peers if peer == giver)
        return (giver, row) if states[giver].received_round > states[wish.device].received_round else None

    def _turn(self, wish: Wish) -> Turn:
        return self._turns[wish.device].at(wish.interval)


def _event(kind: RelayKind, giver: int, taker: int, owner: int, meeting: Meeting, sent: Transfer) -> RelayEvent:
    return RelayEvent(
        round=meeting.round,
        kind=kind,
        giver=giver,
        taker=taker,
        owner=owner,
        contact_s=meeting.contact_s,
        bits=sent.upload.bits if sent.completed else 0.0,
        energy_joules=sent.upload.energy_joules,
        completed=sent.completed,
    )


def _delivered(
    parcel: Parcel, round_: int, contact_s: float, bits: float = 0.0, energy_joules: float = 0.0
) -> RelayEvent:
    """The event of a delivery; merged with the relay's own upload it costs nothing extra."""
    return RelayEvent(
        round=round_,
        kind="delivery",
        giver=parcel.relay,
        taker=SERVER,
        owner=parcel.owner,
        contact_s=contact_s,
        bits=bits,
        energy_joules=energy_joules,
        completed=True,
    )
