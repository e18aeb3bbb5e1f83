"""One contact: the device offers its update, the method decides, the upload is sent and paid for.

The simulator, relays and the field all use these functions. They include the checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor

from wayfare.codec.fitting import CodedUpload, arriving, fit_in_steps, fit_pieces, piece_entries, united
from wayfare.codec.helpers import begun
from wayfare.codec.length import Measured, measure
from wayfare.codec.pieces import Piece
from wayfare.codec.steps import WHOLE
from wayfare.codec.values import value_width
from wayfare.device.checks import Checks
from wayfare.device.state import DeviceState, first_trained
from wayfare.methods import Encounter, Method, State, Upload
from wayfare.methods.account import Meeting, meet, pay
from wayfare.methods.privacy import NoiseSource, Private, secret_noise
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse, top_k, with_tail
from wayfare.sparsify.spectrum import norm_alone, norm_and_spectrum
from wayfare.streams import Stream, generator
from wayfare.waiting import Steps, at_once

# Relative tolerance for sums of a few double-precision numbers.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The constants of all contacts of a run.

    ``norm_scale`` is 1 / learning rate if the controller sees raw gradients, 1 if it sees x itself.
    """

    method: Method
    link: Link  # with the costs of the method's compressor
    rounds: int
    norm_scale: float = 1.0
    seed: int = 0
    checks: Checks = field(default_factory=Checks)
    noise: NoiseSource = secret_noise  # of a private method; only the simulator may use noise by key


def terms_of(
    scenario: Scenario,
    method: Method,
    link: Link,
    *,
    seed: int = 0,
    checks: Checks | None = None,
    noise: NoiseSource = secret_noise,
) -> Terms:
    if method.privacy is not None:
        method.privacy.reject_unusable(method.name, statistics=link.statistics_bits > 0)
    norm_scale = 1 / scenario.learning.learning_rate if scenario.control.update_norm == "raw" else 1.0
    return Terms(
        method=method,
        link=method.compressor.priced(link),
        rounds=scenario.rounds,
        norm_scale=norm_scale,
        seed=seed,
        checks=checks or Checks(),
        noise=noise,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device at the start of a contact: its update, and the encounter that its method sees."""

    state: DeviceState
    update: Tensor
    parameters: int  # entries to choose from; the statistics after them go with every upload
    encounter: Encounter
    norm_sq: float  # of the update, possibly NaN or infinity; the encounter's is always finite
    memory_state: State  # of the memory rule; takes effect if the upload completes
    added: Tensor | None = None  # by a privacy rule to the change, in double precision: noise, less what was clipped

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.norm_sq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    offer: Offer
    state: DeviceState  # after paying and after the memory rule
    upload: Upload  # with the entries, bits and energy that were actually sent
    sent: Sparse | None  # the entries that arrived; None if the upload did not complete
    cut: bool = False  # the contact ended during a piece
    messages: tuple[Measured, ...] = ()  # of a coded upload: those that arrived; together they are `sent`


def contact(
    state: DeviceState, local_model: Tensor, meeting: Meeting, terms: Terms, lasts_s: float | None = None
) -> Transmission:
    """One contact with the server. ``lasts_s`` is its true length if the forecast is wrong."""
    return at_once(contact_in_steps(state, local_model, meeting, terms, lasts_s))


def contact_in_steps(
    state: DeviceState, local_model: Tensor, meeting: Meeting, terms: Terms, lasts_s: float | None = None
) -> Steps[Transmission]:
    """As `contact`, for contacts of different devices at a time."""
    method, change = terms.method, state.received - local_model
    fresh = change if method.privacy is None else _contribution(method.privacy, state, change, meeting, terms)
    update, memory_state = method.memory.offer(state.memory, fresh, state.memory_state)
    offer = yield from _offer_in_steps(
        replace(state, met_s=state.met_s + meeting.contact_s, contacts=state.contacts + 1),
        update,
        meeting,
        terms,
        meeting.round - state.received_round,
        memory_state,
    )
    if method.privacy is not None:
        offer = replace(offer, added=fresh.double() - change.double())
    transmission = yield from _transmit_in_steps(offer, decide(offer, terms), terms, lasts_s)
    terms.checks.transmitted(transmission, method)
    if method.privacy is not None:
        transmission = _counted(method.privacy, transmission, terms)
    if transmission.sent is None:
        return transmission
    local_state = method.local.delivered(transmission.state.local_state, change)
    if local_state is transmission.state.local_state:
        return transmission
    return replace(transmission, state=replace(transmission.state, local_state=local_state))


def _contribution(privacy: Private, state: DeviceState, change: Tensor, meeting: Meeting, terms: Terms) -> Tensor:
    return privacy.contribution(change, state.releases, partial(terms.noise, meeting.device, meeting.round))


def _counted(privacy: Private, transmission: Transmission, terms: Terms) -> Transmission:
    """Count a release, also of an upload that was cut off: what was transmitted may have been heard."""
    state, uses_update = transmission.state, terms.method.upload.uses_update
    if not privacy.is_released(transmission.upload, uses_update=uses_update, releases=state.releases):
        return transmission
    return replace(transmission, state=replace(state, releases=state.releases + 1))


def make_offer(
    state: DeviceState,
    update: Tensor,
    meeting: Meeting,
    terms: Terms,
    *,
    staleness_rounds: int,
    memory_state: State | None = None,
) -> Offer:
    """The offer of a device in a contact, with its energy queue advanced to this round."""
    return at_once(_offer_in_steps(state, update, meeting, terms, staleness_rounds, memory_state))


def _offer_in_steps(
    state: DeviceState,
    update: Tensor,
    meeting: Meeting,
    terms: Terms,
    staleness_rounds: int,
    memory_state: State | None,
) -> Steps[Offer]:
    link = terms.link
    # A controller weighs what was learned, and statistics are in other units.
    parameters = update[first_trained(link) : link.parameters]
    read = (norm_and_spectrum if terms.method.upload.uses_profile else norm_alone)(parameters)
    yield read.is_here
    norm_sq, see = read()
    norm_sq *= terms.norm_scale**2
    seen = None
    if math.isfinite(norm_sq):
        computing = begun(see, len(update) - link.parameters)
        yield computing.is_here
        seen = cache(computing)
    now, encounter = meet(
        state,
        meeting,
        terms.method.upload,
        link,
        rounds=terms.rounds,
        update_norm_sq=norm_sq,
        staleness_rounds=staleness_rounds,
        sums=_left(update[: link.sums]) if link.sums else (0, 0),
        profile=seen,
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
    """The decision of the method, checked and in plain numbers."""
    upload = terms.method.upload.decide(offer.encounter, terms.link)
    return terms.checks.upload(offer.encounter, upload, terms.link, terms.method)


def is_whole(offer: Offer, upload: Upload) -> bool:
    return upload.completes and upload.entries == offer.parameters


def payload(transmission: Transmission, local_model: Tensor, method: Method) -> Sparse | None:
    """What the server receives: entries of the update, or the local model if its rule takes models."""
    sent = transmission.sent
    if sent is None or len(sent) == 0:
        return None
    if method.server.takes == "updates":
        return sent
    return Sparse(torch.arange(len(local_model), device=local_model.device), local_model)


def coded_pieces(transmission: Transmission) -> list[Piece]:
    """The messages of a coded upload with their exact values, for an encoder; none if the upload is not coded."""
    update, parameters = transmission.offer.update, transmission.offer.parameters
    pieces = []
    for message in transmission.messages:
        indices = message.delivered.indices
        if len(indices):
            statistics = len(indices) - int(torch.searchsorted(indices, parameters))
            pieces.append(Piece(Sparse(indices, update[indices]), message.value_bits, statistics))
    return pieces


def transmit(offer: Offer, upload: Upload, terms: Terms, lasts_s: float | None = None) -> Transmission:
    """Pay for an upload and send it. An incomplete upload delivers nothing, and the device keeps its update."""
    return at_once(_transmit_in_steps(offer, upload, terms, lasts_s))


def _transmit_in_steps(offer: Offer, upload: Upload, terms: Terms, lasts_s: float | None) -> Steps[Transmission]:
    forecast_s, link = offer.encounter.contact_s, terms.link
    lasts_s = forecast_s if lasts_s is None else lasts_s
    if lasts_s != forecast_s:
        # After the contact the device knows its true length.
        offer = replace(offer, state=replace(offer.state, met_s=offer.state.met_s + (lasts_s - forecast_s)))
    select = partial(_sums, offer, terms) if upload.value_bits == WHOLE else _selection(offer, terms)
    rate_bps = link.rate_bps(upload.power_watts, offer.encounter.gain_per_watt)
    if upload.value_bits is None or upload.entries == 0:
        chosen = select(upload.entries)
        if len(chosen) < upload.entries:
            # The compressor sent fewer entries than the rule allowed; the device pays only for those.
            bits = len(chosen) * link.bits_per_entry + link.statistics_bits if len(chosen) else 0.0
            upload = _with_cost(upload, len(chosen), min(bits, upload.bits), min(bits, upload.bits) / rate_bps)
        return _all_or_nothing(offer, upload, with_tail(chosen, offer.update, offer.parameters), terms, lasts_s)
    coded = CodedUpload(
        update=offer.update,
        parameters=offer.parameters,
        # A diverged update can be neither quantised nor sorted.
        value_bits=value_width(upload.value_bits) if offer.is_finite else 32,
        largest=select,
    )
    if upload.max_entries is not None and offer.is_finite:
        return _in_pieces(offer, upload, coded, rate_bps, terms, lasts_s)
    room_bits = rate_bps * min(forecast_s, upload.max_joules / upload.power_watts)
    entries, fitting = yield from fit_in_steps(coded, upload.entries, room_bits)
    upload = _with_cost(upload, entries, fitting.bits, fitting.bits / rate_bps)
    return replace(_all_or_nothing(offer, upload, fitting.delivered, terms, lasts_s), messages=(fitting,))


def _all_or_nothing(offer: Offer, upload: Upload, sent: Sparse, terms: Terms, lasts_s: float) -> Transmission:
    """If the contact ends during the upload, the upload and its energy are lost."""
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
    """Send the pieces that fit into the forecast, then more if the contact continues. Pieces that arrive count.

    The device knows its energy, so it starts no piece that it cannot pay for. It learns that a contact outlasts
    its forecast only when the forecast time is over.
    """
    forecast_s, affordable_bits = offer.encounter.contact_s, rate_bps * upload.max_joules / upload.power_watts
    entries = max(upload.max_entries or 0, upload.entries)
    in_piece = piece_entries(upload.entries, upload.bits)
    planned, left = fit_pieces(coded, entries, in_piece, min(rate_bps * forecast_s, affordable_bits))
    stages = [(planned, min(lasts_s, forecast_s))]
    if lasts_s > forecast_s:
        affordable_bits -= sum(message.bits for message in planned)
        further = arriving(map(coded.measured, left), affordable_bits)
        stages.append((further, lasts_s - forecast_s))
    arrived: list[Measured] = []
    airtime_s, cut = 0.0, False
    for messages, time_s in stages:
        through = arriving(messages, rate_bps * time_s)
        cut = len(through) < len(messages)
        # The device does not know when the contact ends, so it also pays for the piece that was cut.
        airtime_s += time_s if cut else sum(message.bits for message in through) / rate_bps
        arrived += through
    whole = united(arrived, coded.nothing)
    upload = _with_cost(upload, max(len(whole.delivered) - coded.statistics, 0), whole.bits, airtime_s)
    return replace(_delivered(offer, upload, whole.delivered, terms), cut=cut, messages=tuple(arrived))


def _delivered(offer: Offer, upload: Upload, sent: Sparse, terms: Terms) -> Transmission:
    """Pay for the entries that arrived and update the memory."""
    paid = pay(offer.state, offer.encounter, upload.energy_joules)
    memory, memory_state = terms.method.memory.keep(offer.update, sent, offer.memory_state)
    state = replace(paid, memory=memory, memory_state=memory_state)
    return Transmission(offer=offer, state=state, upload=upload, sent=sent)


def _with_cost(upload: Upload, entries: int, bits: float, airtime_s: float) -> Upload:
    """The upload with its actual entries, bits and airtime; without airtime the power is 0."""
    power_watts = upload.power_watts if airtime_s > 0 else 0.0
    return replace(
        upload, entries=entries, bits=float(bits), power_watts=power_watts, energy_joules=power_watts * airtime_s
    )


def _selection(offer: Offer, terms: Terms) -> Callable[[int], Sparse]:
    """The compressor as a function of the number of entries. In a diverged update NaN counts as infinity."""
    first, compressor = first_trained(terms.link), terms.method.compressor
    vector = offer.update[first : offer.parameters]
    draw = partial(generator, terms.seed, Stream.COMPRESSION, offer.encounter.device, offer.encounter.round)

    def select(entries: int) -> Sparse:
        if offer.is_finite:
            kept = compressor.select(vector, entries, draw)
            return Sparse(kept.indices + first, kept.values) if first else kept
        kept = compressor.select(vector.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf), entries, draw)
        return Sparse(kept.indices + first, vector.index_select(0, kept.indices))

    return select


def _left(sums: Tensor) -> tuple[int, int]:
    """The number of entries that are not 0, and the bits of a message of them."""
    indices = sums.nonzero().view(-1)
    kept = Sparse(indices, sums.index_select(0, indices))
    return len(kept), measure(kept, len(sums), WHOLE).bits if len(kept) else 0


def _sums(offer: Offer, terms: Terms, entries: int) -> Sparse:
    """Statistics that are not 0: those that go first, then the others, each by falling magnitude."""
    sums, first = offer.update[: terms.link.sums], terms.link.first_sums
    early = top_k(sums[:first], min(entries, int(sums[:first].count_nonzero())))
    late = top_k(sums[first:], entries - len(early))
    return Sparse(torch.cat([early.indices, late.indices + first]), torch.cat([early.values, late.values]))
