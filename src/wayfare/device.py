"""A device and its transitions (Algorithm 1, "on each mobile device"): pure functions over a frozen state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from torch import Tensor

from wayfare.codec.length import measure
from wayfare.codec.values import value_width
from wayfare.codec.widths import profile
from wayfare.control import queue
from wayfare.control.auto_weight import NO_EXPERIENCE, Experience, Wanted
from wayfare.radio import Link
from wayfare.schemes import Encounter, Upload, paper_demand
from wayfare.sparsify import Sparse, remainder, top_k, with_tail
from wayfare.sparsify.spectrum import spectrum

Wants: TypeAlias = Callable[[Encounter, Link], Wanted | None]
"""How a scheme says what a contact would take at a price."""

# Sums of a few numbers in double precision agree to this.
_ROUNDING = 1e-9
# An encoding may leave so much of its room unused, and entries are dropped until so much is spare.
_WELL_USED, _SPARE = 1.03, 0.002


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device at the beginning of a contact: the update x = e + g it has to send, and what its scheme sees."""

    state: DeviceState
    update: Tensor
    parameters: int
    encounter: Encounter
    update_is_sound: bool  # every number of it is one, and finite


def begin_contact(
    state: DeviceState,
    local_model: Tensor,
    *,
    contact_s: float,
    gain_per_watt: float,
    round_: int,
    rounds: int,
    link: Link,
    norm_scale: float,
    wants: Wants = paper_demand,
) -> Offer:
    """x = e + g with g = received - local; the queue is brought to this round.

    A vector is entries to choose from, as many as the link's model has, and then normalisation statistics that go with
    every upload.

    ``norm_scale`` is 1 / learning rate where the controller is to see raw gradients, 1 where it is to see x itself.
    """
    return make_offer(
        replace(state, met_s=state.met_s + contact_s),
        undelivered(state, local_model),
        staleness_rounds=round_ - state.received_round,
        contact_s=contact_s,
        gain_per_watt=gain_per_watt,
        round_=round_,
        rounds=rounds,
        link=link,
        norm_scale=norm_scale,
        wants=wants,
    )


def undelivered(state: DeviceState, local_model: Tensor) -> Tensor:
    """x = e + g, all that a device computed and nobody has."""
    return state.memory + (state.received - local_model)


def make_offer(
    state: DeviceState,
    update: Tensor,
    *,
    staleness_rounds: int,
    contact_s: float,
    gain_per_watt: float,
    round_: int,
    rounds: int,
    link: Link,
    norm_scale: float,
    wants: Wants = paper_demand,
) -> Offer:
    """What a device has to send in a contact and what its scheme sees of it; the queue is brought to this round."""
    parameters = update[: link.parameters]
    own_norm_sq = float(parameters.double().square().sum())
    pace = state.budget_joules / rounds
    # A device that has already sent something in this round has paid its pace.
    idle_rounds = max(round_ - state.backlog_round, 0)
    now = replace(
        state,
        backlog_joules=queue.idle(state.backlog_joules, idle_rounds, pace),
        backlog_round=max(round_, state.backlog_round),
    )
    is_sound = math.isfinite(own_norm_sq * norm_scale**2)
    encounter = Encounter(
        contact_s=contact_s,
        gain_per_watt=gain_per_watt,
        staleness_rounds=staleness_rounds,
        update_norm_sq=own_norm_sq * norm_scale**2,
        backlog_joules=now.backlog_joules,
        spent_joules=now.spent_joules,
        budget_joules=now.budget_joules,
        round=round_,
        rounds=rounds,
        met_s=now.met_s,
        experience=now.experience,
        profile=cache(lambda: profile(spectrum(parameters, own_norm_sq), len(update) - len(parameters)))
        if is_sound
        else None,
    )
    wanted = wants(encounter, link)
    experience = (
        now.experience.with_contact(wanted.usable_joules, wanted.worth, wanted.wanted_joules())
        if wanted
        else now.experience.with_contact(0.0, 0.0)
    )
    return Offer(
        state=replace(now, experience=experience),
        update=update,
        parameters=link.parameters,
        encounter=replace(encounter, experience=experience),
        update_is_sound=is_sound,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transmission:
    """What became of an upload."""

    state: DeviceState  # of the device, which has paid and remembers what did not arrive
    upload: Upload  # as it was: entries, bits and energy are those that were really sent
    sent: Sparse | None  # what arrived; None when the upload did not complete
    cut: bool = False  # pieces arrived, and then the contact ended


def transmit(offer: Offer, upload: Upload, link: Link, lasts_s: float | None = None) -> Transmission:
    """Pay for an upload and send it: e = x - S(x). One that does not complete sends nothing and keeps everything.

    ``lasts_s`` is how long the contact lasts, where that is not what the encounter said.
    """
    lasts_s = offer.encounter.contact_s if lasts_s is None else lasts_s
    if upload.value_bits is not None and upload.entries > 0:
        upload, sent = _coded(offer, upload, link)
    else:
        sent = with_tail(_largest(offer, upload.entries), offer.update, offer.parameters)
    if upload.airtime_s > lasts_s * (1 + _ROUNDING):
        upload = replace(upload, entries=0, bits=0.0, energy_joules=upload.power_watts * lasts_s, completes=False)
    paid = pay(offer, upload)
    if not upload.completes:
        return Transmission(state=paid, upload=upload, sent=None)
    return Transmission(state=replace(paid, memory=remainder(offer.update, sent)), upload=upload, sent=sent)


def _coded(offer: Offer, upload: Upload, link: Link) -> tuple[Upload, Sparse]:
    """The largest entries as their encoding delivers them, and what it costs; entries that do not fit are dropped."""
    gain_per_watt, width = offer.encounter.gain_per_watt, value_width(upload.value_bits)
    # What diverged cannot be quantised.
    width = width if offer.update_is_sound else 32
    airtime_s = min(offer.encounter.contact_s, upload.most_joules / upload.power_watts)
    room_bits = airtime_s * link.rate_bps(upload.power_watts, gain_per_watt) * (1 + _ROUNDING)
    fixed_bits = 32 * (len(offer.update) - offer.parameters)
    entries, found, tries = upload.entries, None, 0
    while entries > 0:
        kept = with_tail(_largest(offer, entries), offer.update, offer.parameters)
        measured, tries = measure(kept, offer.parameters, width), tries + 1
        share = max(room_bits - fixed_bits, 0.0) / (measured.bits - fixed_bits)
        if share >= 1:
            found = entries, measured
            # The forecast of the length was too high: what is left over is worth another try.
            if share <= _WELL_USED or tries > 1 or entries == offer.parameters:
                break
            entries = min(int(entries * share / _WELL_USED), offer.parameters)
        elif found is not None:
            break
        else:
            entries = min(int(entries * share * (1 - _SPARE)), entries - 1)
    if found is None:
        return replace(upload, entries=0, bits=0.0, energy_joules=0.0, power_watts=0.0), _largest(offer, 0)
    entries, measured = found
    bits = float(measured.bits)
    energy_joules = link.energy_joules(bits, upload.power_watts, gain_per_watt)
    return replace(upload, entries=entries, bits=bits, energy_joules=energy_joules), measured.delivered


def hand_over(offer: Offer, upload: Upload) -> tuple[DeviceState, Tensor | None]:
    """Pay, and give x to a relay, which answers for it from then on: e becomes e - x = -g.

    The device keeps its received and its local model, so that it goes on from where it is; what it sends later is
    e + g again, which now is only what is new. Less than everything is not handed over, and nothing changes.
    """
    paid = pay(offer, upload)
    if not is_whole(offer, upload):
        return paid, None
    return replace(paid, memory=paid.memory - offer.update), offer.update


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
