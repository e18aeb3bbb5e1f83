"""A device and its transitions (Algorithm 1, "on each mobile device"): pure functions over a frozen state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from torch import Tensor

from wayfare.codec.fitting import CodedUpload, arriving, fit, fit_pieces, piece_entries, united
from wayfare.codec.length import Measured
from wayfare.codec.values import value_width
from wayfare.codec.widths import profile
from wayfare.control import queue
from wayfare.control.auto_weight import NO_EXPERIENCE, Experience, Wanted, after_contact
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.schemes import Encounter, Scheme, Upload, paper_demand
from wayfare.sparsify import Sparse, remainder, top_k, with_tail
from wayfare.sparsify.spectrum import spectrum

Wants: TypeAlias = Callable[[Encounter, Link], Wanted | None]
"""How a scheme says what a contact would take at a price."""

# Sums of a few numbers in double precision agree to this.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What a device carries from contact to contact. Its local model is w_n = received - g_n."""

    received: Tensor  # the last global model it got
    received_round: int  # kappa
    memory: Tensor  # e, what error feedback remembers
    budget_joules: float
    spent_joules: float = 0.0
    backlog_joules: float = 0.0  # q at the beginning of `backlog_round`
    backlog_round: int = 1
    met_s: float = 0.0
    experience: Experience = NO_EXPERIENCE

    @property
    def left_joules(self) -> float:
        """What there is to spend."""
        return self.budget_joules - self.spent_joules


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device at the beginning of a contact: the update x = e + g it has to send, and what its scheme sees."""

    state: DeviceState
    update: Tensor
    parameters: int
    encounter: Encounter
    update_is_sound: bool  # every number of it is one, and finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is the same at all contacts of a run.

    ``norm_scale`` is 1 / learning rate where the controller is to see raw gradients, 1 where it is to see x itself.
    """

    link: Link
    rounds: int
    norm_scale: float = 1.0
    wants: Wants = paper_demand


def terms_of(scenario: Scenario, scheme: Scheme, link: Link) -> Terms:
    """The terms of a scheme in a scenario."""
    norm_scale = 1 / scenario.learning.learning_rate if scenario.control.update_norm == "raw" else 1.0
    wants = getattr(scheme, "demand", paper_demand)
    return Terms(link=link, rounds=scenario.rounds, norm_scale=norm_scale, wants=wants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A contact as a device sees it when it begins."""

    round: int
    contact_s: float
    gain_per_watt: float


def begin_contact(state: DeviceState, local_model: Tensor, meeting: Meeting, terms: Terms) -> Offer:
    """x = e + g with g = received - local; the queue is brought to this round.

    A vector is entries to choose from, as many as the link's model has, and then normalisation statistics that go with
    every upload.
    """
    return make_offer(
        replace(state, met_s=state.met_s + meeting.contact_s),
        undelivered(state, local_model),
        meeting,
        terms,
        staleness_rounds=meeting.round - state.received_round,
    )


def undelivered(state: DeviceState, local_model: Tensor) -> Tensor:
    """x = e + g, all that a device computed and nobody has."""
    return state.memory + (state.received - local_model)


def make_offer(state: DeviceState, update: Tensor, meeting: Meeting, terms: Terms, *, staleness_rounds: int) -> Offer:
    """What a device has to send in a contact and what its scheme sees of it; the queue is brought to this round."""
    parameters = update[: terms.link.parameters]
    norm_sq = float(parameters.double().square().sum()) * terms.norm_scale**2
    pace = state.budget_joules / terms.rounds
    # A device that has already sent something in this round has paid its pace.
    idle_rounds = max(meeting.round - state.backlog_round, 0)
    now = replace(
        state,
        backlog_joules=queue.idle(state.backlog_joules, idle_rounds, pace),
        backlog_round=max(meeting.round, state.backlog_round),
    )
    is_sound = math.isfinite(norm_sq)
    encounter = Encounter(
        contact_s=meeting.contact_s,
        gain_per_watt=meeting.gain_per_watt,
        staleness_rounds=staleness_rounds,
        update_norm_sq=norm_sq,
        backlog_joules=now.backlog_joules,
        spent_joules=now.spent_joules,
        budget_joules=now.budget_joules,
        round=meeting.round,
        rounds=terms.rounds,
        met_s=now.met_s,
        experience=now.experience,
        profile=cache(lambda: profile(spectrum(parameters), len(update) - len(parameters))) if is_sound else None,
    )
    experience = after_contact(now.experience, terms.wants(encounter, terms.link))
    return Offer(
        state=replace(now, experience=experience),
        update=update,
        parameters=terms.link.parameters,
        encounter=replace(encounter, experience=experience),
        update_is_sound=is_sound,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    """What became of an upload."""

    state: DeviceState  # of the device, which has paid and remembers what did not arrive
    upload: Upload  # as it was: entries, bits and energy are those that were really sent
    sent: Sparse | None  # what arrived; None when the upload did not complete
    cut: bool = False  # the contact ended while a piece was on its way


def transmit(offer: Offer, upload: Upload, link: Link, lasts_s: float | None = None) -> Transmission:
    """Pay for an upload and send it: e = x - S(x). One that does not complete sends nothing and keeps everything.

    ``lasts_s`` is how long the contact lasts, where that is not what the encounter said.
    """
    foreseen_s = offer.encounter.contact_s
    lasts_s = foreseen_s if lasts_s is None else lasts_s
    # When the contact is over, the device knows how long it was.
    offer = replace(offer, state=replace(offer.state, met_s=offer.state.met_s + (lasts_s - foreseen_s)))
    if upload.value_bits is None or upload.entries == 0:
        sent = with_tail(_largest(offer, upload.entries), offer.update, offer.parameters)
        return _all_or_nothing(offer, upload, sent, lasts_s)
    coded = CodedUpload(
        update=offer.update,
        parameters=offer.parameters,
        # What diverged can neither be quantised nor put in order.
        value_bits=value_width(upload.value_bits) if offer.update_is_sound else 32,
        largest=lambda entries: _largest(offer, entries),
    )
    rate_bps = link.rate_bps(upload.power_watts, offer.encounter.gain_per_watt)
    if upload.entries_if_it_lasts is not None and offer.update_is_sound:
        return _in_pieces(offer, upload, coded, rate_bps, lasts_s)
    room_bits = rate_bps * min(foreseen_s, upload.most_joules / upload.power_watts)
    entries, fitting = fit(coded, upload.entries, room_bits)
    upload = _costing(upload, entries, fitting.bits, fitting.bits / rate_bps)
    return _all_or_nothing(offer, upload, fitting.delivered, lasts_s)


def _all_or_nothing(offer: Offer, upload: Upload, sent: Sparse, lasts_s: float) -> Transmission:
    """An upload that the end of the contact cuts short is lost, and its energy with it."""
    if upload.airtime_s > lasts_s * (1 + _ROUNDING):
        lost_joules = upload.power_watts * lasts_s
        upload = replace(upload, entries=0, bits=0.0, energy_joules=lost_joules, completes=False)
    paid = pay(offer, upload)
    if not upload.completes:
        return Transmission(state=paid, upload=upload, sent=None)
    return Transmission(state=replace(paid, memory=remainder(offer.update, sent)), upload=upload, sent=sent)


def _in_pieces(offer: Offer, upload: Upload, coded: CodedUpload, rate_bps: float, lasts_s: float) -> Transmission:
    """The pieces that fit into the foreseen time, then others if the contact continues; those that arrived count.

    The device knows its energy, so it begins no piece that it cannot pay to the end. It learns that a contact outlasts
    the forecast when that time is over, and continues then.
    """
    foreseen_s, affordable_bits = offer.encounter.contact_s, rate_bps * upload.most_joules / upload.power_watts
    entries = max(upload.entries_if_it_lasts or 0, upload.entries)
    in_piece = piece_entries(upload.entries, upload.bits)
    planned, left = fit_pieces(coded, entries, in_piece, min(rate_bps * foreseen_s, affordable_bits))
    stages = [(planned, min(lasts_s, foreseen_s))]
    if lasts_s > foreseen_s:
        affordable_bits -= sum(message.bits for message in planned)
        further = arriving(map(coded.measured, left), affordable_bits)
        stages.append((further, lasts_s - foreseen_s))
    arrived: list[Measured] = []
    airtime_s, cut = 0.0, False
    for messages, time_s in stages:
        through = arriving(messages, rate_bps * time_s)
        cut = len(through) < len(messages)
        # The device does not know when the contact will end: the piece that was cut has cost its energy too.
        airtime_s += time_s if cut else sum(message.bits for message in through) / rate_bps
        arrived += through
    whole = united(arrived, coded.nothing)
    upload = _costing(upload, max(len(whole.delivered) - coded.statistics, 0), whole.bits, airtime_s)
    state = replace(pay(offer, upload), memory=remainder(offer.update, whole.delivered))
    return Transmission(state=state, upload=upload, sent=whole.delivered, cut=cut)


def _costing(upload: Upload, entries: int, bits: int, airtime_s: float) -> Upload:
    """An upload of so many entries and bits; one that sends nothing needs no power."""
    power_watts = upload.power_watts if airtime_s > 0 else 0.0
    return replace(
        upload, entries=entries, bits=float(bits), power_watts=power_watts, energy_joules=power_watts * airtime_s
    )


def hand_over(state: DeviceState, update: Tensor) -> DeviceState:
    """Give x to a relay, which answers for it from then on: e becomes e - x = -g.

    The device keeps its received and its local model; what it sends later is e + g again, which now is only what is
    new.
    """
    return replace(state, memory=state.memory - update)


def is_whole(offer: Offer, upload: Upload) -> bool:
    """Whether an upload carries everything."""
    return upload.completes and upload.entries == offer.parameters


def take_model(
    state: DeviceState, update: Tensor, model: Tensor, model_round: int, nothing: Tensor
) -> tuple[DeviceState, Tensor]:
    """Take the global model of another device and put x = e + g on top of it: the new state and the new local model.

    All that nobody has is then in the local model, and nothing in the memory.
    """
    return replace(state, received=model, received_round=model_round, memory=nothing), model - update


def pay(offer: Offer, upload: Upload) -> DeviceState:
    """The energy of an upload; all that a device sends in one round counts against one round's pace."""
    state, encounter = offer.state, offer.encounter
    pace = state.budget_joules / encounter.rounds if state.backlog_round == encounter.round else 0.0
    return replace(
        state,
        spent_joules=state.spent_joules + upload.energy_joules,
        backlog_joules=queue.spend(state.backlog_joules, upload.energy_joules, pace),
        backlog_round=encounter.round + 1,
    )


def receive(state: DeviceState, model: Tensor, round_: int) -> DeviceState:
    """Take the global model: g = 0 and the age of the model is 0."""
    return replace(state, received=model, received_round=round_)


def _largest(offer: Offer, entries: int) -> Sparse:
    """The largest parameters of an update; in one that diverged, a number that is none counts as infinite."""
    vector = offer.update[: offer.parameters]
    if offer.update_is_sound:
        return top_k(vector, entries)
    kept = top_k(vector.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf), entries)
    return Sparse(kept.indices, vector.index_select(0, kept.indices))
