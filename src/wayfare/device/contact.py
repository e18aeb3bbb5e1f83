"""One contact: what a device has to send, what its method decides, and what becomes of it.

The simulator, relays and the field all come here, and the checks are inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor

from wayfare.codec.fitting import CodedUpload, arriving, fit, fit_pieces, piece_entries, united
from wayfare.codec.length import Measured
from wayfare.codec.values import value_width
from wayfare.codec.widths import profile
from wayfare.device.checks import Checks
from wayfare.device.state import DeviceState
from wayfare.methods import Encounter, Method, State, Upload
from wayfare.methods.account import Meeting, meet, pay
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse, with_tail
from wayfare.sparsify.spectrum import spectrum
from wayfare.streams import Stream, generator

# Sums of a few numbers in double precision agree to this.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is the same at all contacts of a run.

    ``norm_scale`` is 1 / learning rate where the controller is to see raw gradients, 1 where it is to see x itself.
    """

    method: Method
    link: Link  # with the prices of the method's compressor
    rounds: int
    norm_scale: float = 1.0
    seed: int = 0
    checks: Checks = field(default_factory=Checks)


def terms_of(scenario: Scenario, method: Method, link: Link, *, seed: int = 0, checks: Checks | None = None) -> Terms:
    norm_scale = 1 / scenario.learning.learning_rate if scenario.control.update_norm == "raw" else 1.0
    return Terms(
        method=method,
        link=method.compressor.priced(link),
        rounds=scenario.rounds,
        norm_scale=norm_scale,
        seed=seed,
        checks=checks or Checks(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device at the beginning of a contact: what it has to send, and what its method sees of it."""

    state: DeviceState
    update: Tensor
    parameters: int  # of the update that may be chosen from; behind them lie statistics that go with every upload
    encounter: Encounter
    norm_sq: float  # of the update as it is; the encounter's is a number to reckon with
    memory_state: State  # of the memory rule, if the upload completes

    @property
    def is_sound(self) -> bool:
        """Whether every number of the update is one, and finite."""
        return math.isfinite(self.norm_sq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    offer: Offer
    state: DeviceState  # of the device, which has paid and remembers what did not arrive
    upload: Upload  # as it was: entries, bits and energy are those that were really sent
    sent: Sparse | None  # what arrived of the update; None when the upload did not complete
    cut: bool = False  # the contact ended while a piece was on its way


def contact(
    state: DeviceState, local_model: Tensor, meeting: Meeting, terms: Terms, lasts_s: float | None = None
) -> Transmission:
    """A contact with the server. ``lasts_s`` is how long it lasts, where that is not what the device thinks."""
    method, change = terms.method, state.received - local_model
    update, memory_state = method.memory.offer(state.memory, change, state.memory_state)
    offer = make_offer(
        replace(state, met_s=state.met_s + meeting.contact_s, contacts=state.contacts + 1),
        update,
        meeting,
        terms,
        staleness_rounds=meeting.round - state.received_round,
        memory_state=memory_state,
    )
    transmission = transmit(offer, decide(offer, terms), terms, lasts_s)
    terms.checks.transmitted(transmission, method)
    if transmission.sent is None:
        return transmission
    local_state = method.local.delivered(transmission.state.local_state, change)
    if local_state is transmission.state.local_state:
        return transmission
    return replace(transmission, state=replace(transmission.state, local_state=local_state))


def make_offer(
    state: DeviceState,
    update: Tensor,
    meeting: Meeting,
    terms: Terms,
    *,
    staleness_rounds: int,
    memory_state: State | None = None,
) -> Offer:
    """What a device has to send in a contact, and what its method sees of it; the queue is brought to this round."""
    link, parameters = terms.link, update[: terms.link.parameters]
    norm_sq = float(parameters.double().square().sum()) * terms.norm_scale**2
    seen = cache(lambda: profile(spectrum(parameters), len(update) - len(parameters)))
    now, encounter = meet(
        state,
        meeting,
        terms.method.upload,
        link,
        rounds=terms.rounds,
        update_norm_sq=norm_sq,
        staleness_rounds=staleness_rounds,
        profile=seen if math.isfinite(norm_sq) else None,
    )
    return Offer(
        state=now,
        update=update,
        parameters=link.parameters,
        encounter=terms.checks.encounter(encounter),
        norm_sq=norm_sq,
        memory_state=state.memory_state if memory_state is None else memory_state,
    )


def decide(offer: Offer, terms: Terms) -> Upload:
    """What the method does with a contact, in plain numbers that can be."""
    upload = terms.method.upload.decide(offer.encounter, terms.link)
    return terms.checks.upload(offer.encounter, upload, terms.link, terms.method)


def is_whole(offer: Offer, upload: Upload) -> bool:
    return upload.completes and upload.entries == offer.parameters


def payload(transmission: Transmission, local_model: Tensor, method: Method) -> Sparse | None:
    """What the server gets: entries of the update, or the whole local model where its rule takes models."""
    sent = transmission.sent
    if sent is None or len(sent) == 0:
        return None
    if method.server.takes == "updates":
        return sent
    return Sparse(torch.arange(len(local_model), device=local_model.device), local_model)


def transmit(offer: Offer, upload: Upload, terms: Terms, lasts_s: float | None = None) -> Transmission:
    """Pay for an upload and send it. One that does not complete sends nothing and keeps everything."""
    foreseen_s, link = offer.encounter.contact_s, terms.link
    lasts_s = foreseen_s if lasts_s is None else lasts_s
    if lasts_s != foreseen_s:
        # When the contact is over, the device knows how long it was.
        offer = replace(offer, state=replace(offer.state, met_s=offer.state.met_s + (lasts_s - foreseen_s)))
    select = partial(_selected, offer, terms)
    rate_bps = link.rate_bps(upload.power_watts, offer.encounter.gain_per_watt)
    if upload.value_bits is None or upload.entries == 0:
        chosen = select(upload.entries)
        if len(chosen) < upload.entries:
            # The compressor has less to send than there was room for, and nobody pays for the rest.
            bits = len(chosen) * link.bits_per_entry + link.statistics_bits if len(chosen) else 0.0
            upload = _costing(upload, len(chosen), min(bits, upload.bits), min(bits, upload.bits) / rate_bps)
        return _all_or_nothing(offer, upload, with_tail(chosen, offer.update, offer.parameters), terms, lasts_s)
    coded = CodedUpload(
        update=offer.update,
        parameters=offer.parameters,
        # What diverged can neither be quantised nor put in order.
        value_bits=value_width(upload.value_bits) if offer.is_sound else 32,
        largest=select,
    )
    if upload.max_entries is not None and offer.is_sound:
        return _in_pieces(offer, upload, coded, rate_bps, terms, lasts_s)
    room_bits = rate_bps * min(foreseen_s, upload.max_joules / upload.power_watts)
    entries, fitting = fit(coded, upload.entries, room_bits)
    upload = _costing(upload, entries, fitting.bits, fitting.bits / rate_bps)
    return _all_or_nothing(offer, upload, fitting.delivered, terms, lasts_s)


def _all_or_nothing(offer: Offer, upload: Upload, sent: Sparse, terms: Terms, lasts_s: float) -> Transmission:
    """An upload that the end of the contact cuts short is lost, and its energy with it."""
    if upload.airtime_s > lasts_s * (1 + _ROUNDING):
        lost_joules = upload.power_watts * lasts_s
        upload = replace(upload, entries=0, bits=0.0, energy_joules=lost_joules, completes=False)
    if upload.completes:
        return _delivered(offer, upload, sent, terms)
    return Transmission(
        offer=offer, state=pay(offer.state, offer.encounter, upload.energy_joules), upload=upload, sent=None
    )


def _in_pieces(
    offer: Offer, upload: Upload, coded: CodedUpload, rate_bps: float, terms: Terms, lasts_s: float
) -> Transmission:
    """The pieces that fit into the foreseen time, then others if the contact continues; those that arrived count.

    The device knows its energy, so it begins no piece that it cannot pay to the end. It learns that a contact outlasts
    the forecast when that time is over, and continues then.
    """
    foreseen_s, affordable_bits = offer.encounter.contact_s, rate_bps * upload.max_joules / upload.power_watts
    entries = max(upload.max_entries or 0, upload.entries)
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
    return replace(_delivered(offer, upload, whole.delivered, terms), cut=cut)


def _delivered(offer: Offer, upload: Upload, sent: Sparse, terms: Terms) -> Transmission:
    """Entries have arrived: they are paid for, and the memory rule remembers the others."""
    paid = pay(offer.state, offer.encounter, upload.energy_joules)
    memory, memory_state = terms.method.memory.keep(offer.update, sent, offer.memory_state)
    state = replace(paid, memory=memory, memory_state=memory_state)
    return Transmission(offer=offer, state=state, upload=upload, sent=sent)


def _costing(upload: Upload, entries: int, bits: float, airtime_s: float) -> Upload:
    """An upload of so many entries and bits; one that sends nothing needs no power."""
    power_watts = upload.power_watts if airtime_s > 0 else 0.0
    return replace(
        upload, entries=entries, bits=float(bits), power_watts=power_watts, energy_joules=power_watts * airtime_s
    )


def _selected(offer: Offer, terms: Terms, entries: int) -> Sparse:
    """The entries that the compressor selects. In an update that diverged, NaN counts as infinite."""
    vector, compressor = offer.update[: offer.parameters], terms.method.compressor
    draw = partial(generator, terms.seed, Stream.COMPRESSION, offer.encounter.device, offer.encounter.round)
    if offer.is_sound:
        return compressor.select(vector, entries, draw)
    kept = compressor.select(vector.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf), entries, draw)
    return Sparse(kept.indices, vector.index_select(0, kept.indices))
