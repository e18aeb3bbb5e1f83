"""One contact, computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from tests.device.by_hand import LINK, LOCAL, MEETING, STATE, UPDATE, AtMost, Decided, made_of, sending, terms
from torch import Tensor

import wayfare
from wayfare.device import (
    Checks,
    Terms,
    Transmission,
    coded_pieces,
    contact,
    hand_over,
    is_whole,
    make_offer,
    payload,
    take_model,
    terms_of,
    transmit,
    undelivered,
)
from wayfare.methods import Compressor, LocalRule
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.parts import State
from wayfare.methods.servers import Mix
from wayfare.sparsify import Sparse, top_k


def test_a_contact_pays_sends_the_largest_and_remembers_the_rest() -> None:
    rule = Decided(sending(3, 3 * 35.0 + 32.0))
    done = contact(STATE, LOCAL, MEETING, terms(rule, norm_scale=2.0))
    (seen,) = rule.seen
    assert (seen.staleness_rounds, seen.met_s, seen.contacts, seen.round, seen.rounds) == (5, 8.0, 5, 7, 100)
    assert (seen.device, seen.samples, seen.left_joules) == (3, 11, 6.0)
    assert seen.next_contact_rounds == 7 / 5
    # Of the parameters alone, and of the gradients that they are where the scale is 1 / learning rate.
    assert seen.update_norm_sq == 4 * (1.0 + 0.25 + 4.0 + 16.0 + 36.0)
    assert done.offer.norm_sq == seen.update_norm_sq
    # Three idle rounds at a pace of a tenth of a joule.
    assert seen.backlog_joules == pytest.approx(0.45)
    assert torch.equal(done.offer.update, UPDATE)
    assert done.sent is not None
    assert done.sent.indices.tolist() == [2, 4, 7, 8]
    assert done.sent.values.tolist() == [-2.0, -4.0, -6.0, 1.0]
    assert done.state.memory.tolist() == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    energy_joules = 0.2 * 137 / 2000
    assert (done.upload.entries, done.upload.bits) == (3, 137.0)
    assert done.upload.energy_joules == pytest.approx(energy_joules)
    assert done.state.spent_joules == pytest.approx(4.0 + energy_joules)
    assert done.state.backlog_joules == pytest.approx(0.45 + energy_joules - 0.1)
    assert (done.state.met_s, done.state.contacts, done.state.backlog_round) == (8.0, 5, 8)
    assert not done.cut


def test_the_norm_is_that_of_gradients_where_the_controller_wants_them() -> None:
    method = made_of(Decided(sending(0, 0.0)))
    for update_norm, scale in (("raw", 1 / 0.05), ("scaled", 1.0)):
        scenario = wayfare.load(overrides=["learning.learning_rate=0.05", f'control.update_norm="{update_norm}"'])
        found = terms_of(scenario, method, LINK)
        assert found.norm_scale == pytest.approx(scale)
        assert (found.rounds, found.seed, found.checks, found.link) == (scenario.rounds, 0, Checks(), LINK)
    offer = make_offer(STATE, UPDATE, MEETING, replace(found, norm_scale=20.0), staleness_rounds=1)
    assert offer.norm_sq == pytest.approx(400 * 57.25)
    plain = Terms(method=method, link=LINK, rounds=100)
    assert plain.seed == 0
    assert make_offer(STATE, UPDATE, MEETING, plain, staleness_rounds=1).norm_sq == pytest.approx(57.25)


@pytest.mark.parametrize(
    ("most", "bits_per_entry", "bits"),
    [(2, 35.0, 2 * 35.0 + 32.0), (7, 40.0, 288.0), (0, 35.0, 0.0)],
    ids=["fewer", "no more than was planned", "none"],
)
def test_nobody_pays_for_entries_that_the_compressor_does_not_have(
    most: int, bits_per_entry: float, bits: float
) -> None:
    link = replace(LINK, bits_per_entry=bits_per_entry)
    done = contact(STATE, LOCAL, MEETING, terms(Decided(sending(8, 288.0)), AtMost(most), link))
    assert (done.upload.entries, done.upload.bits) == (most, bits)
    assert done.upload.energy_joules == pytest.approx(0.2 * bits / 2000)
    assert done.upload.power_watts == (0.2 if most else 0.0)
    assert done.state.spent_joules == pytest.approx(4.0 + 0.2 * bits / 2000)


def test_an_upload_of_all_that_the_compressor_has_costs_what_was_decided() -> None:
    done = contact(STATE, LOCAL, MEETING, terms(Decided(sending(8, 288.0)), AtMost(8)))
    assert (done.upload.entries, done.upload.bits) == (8, 288.0)


@pytest.mark.parametrize(("share", "arrives"), [(1.0, True), (1 - 1e-8, False), (0.5, False), (2.0, True)])
def test_an_upload_that_the_contact_cuts_short_is_lost_with_its_energy(share: float, arrives: bool) -> None:
    upload = sending(3, 137.0)
    lasts_s = share * 137 / 2000
    done = contact(STATE, LOCAL, MEETING, terms(Decided(upload)), lasts_s=lasts_s)
    assert (done.sent is not None) == done.upload.completes == arrives
    assert done.state.met_s == pytest.approx(3.0 + lasts_s)
    if not arrives:
        assert (done.upload.entries, done.upload.bits) == (0, 0.0)
        assert done.upload.energy_joules == pytest.approx(0.2 * lasts_s)
        assert done.state.spent_joules == pytest.approx(4.0 + 0.2 * lasts_s)
        assert done.state.memory is STATE.memory


def test_an_upload_that_does_not_complete_burns_its_energy_and_keeps_everything() -> None:
    done = contact(STATE, LOCAL, MEETING, terms(Decided(sending(0, 0.0, energy_joules=0.3, completes=False))))
    assert done.sent is None
    assert done.state.spent_joules == 4.3
    assert done.state.memory is STATE.memory
    assert not done.upload.completes


def coded(max_joules: float = math.inf, longer: int | None = None, contact_s: float = 5.0) -> Transmission:
    """A coded upload of half of 4,000 entries."""
    link = replace(LINK, parameters=4000, bandwidth_hz=1e4, dense_bits=128_000.0, statistics_bits=0.0)
    update = torch.from_numpy(np.random.default_rng(0).standard_t(4, 4000).astype(np.float32))
    state = replace(STATE, received=update, memory=torch.zeros(4000))
    upload = sending(2000, 20_000.0, energy_joules=0.2, value_bits=4, max_joules=max_joules, max_entries=longer)
    meeting = replace(MEETING, contact_s=contact_s)
    of = terms(Decided(upload), link=link)
    return transmit(make_offer(state, update, meeting, of, staleness_rounds=1), upload, of)


@pytest.mark.parametrize("longer", [None, 2000])
def test_a_coded_upload_uses_no_more_than_its_time_and_its_energy(longer: int | None) -> None:
    by_time = coded(contact_s=0.4, longer=longer)
    by_energy = coded(max_joules=0.08, longer=longer)  # of 0.4 s at 0.2 W
    for found in (by_time, by_energy):
        assert 0.9 * 8000 < found.upload.bits <= 8000
        assert found.upload.energy_joules == pytest.approx(0.2 * found.upload.bits / 20_000)
    free = coded(longer=longer)
    # Room that is left takes more entries, but pieces are those that were decided.
    assert free.upload.entries == (4000 if longer is None else 2000)
    assert free.upload.bits > by_time.upload.bits
    assert free.state.spent_joules == pytest.approx(4.0 + free.upload.energy_joules)


def test_whole_uploads_are_told_from_parts() -> None:
    offer = contact(STATE, LOCAL, MEETING, terms(Decided(sending(3, 137.0)))).offer
    assert is_whole(offer, sending(8, 288.0))
    assert not is_whole(offer, sending(7, 277.0))
    assert not is_whole(offer, sending(8, 288.0, completes=False))


def test_the_server_gets_entries_or_the_whole_model_and_nothing_for_nothing() -> None:
    updates, models = made_of(Decided(sending(8, 288.0))), made_of(Decided(sending(8, 288.0)), server=Mix())
    done = contact(STATE, LOCAL, MEETING, terms(Decided(sending(3, 137.0))))
    assert payload(done, LOCAL, updates) is done.sent
    whole = payload(done, LOCAL, models)
    assert whole is not None
    assert (whole.indices.tolist(), whole.values.tolist()) == (list(range(9)), LOCAL.tolist())
    assert payload(replace(done, sent=None), LOCAL, updates) is None
    assert (
        payload(replace(done, sent=Sparse(torch.empty(0, dtype=torch.int64), torch.empty(0))), LOCAL, updates) is None
    )


def test_what_diverged_is_sent_as_it_is_its_largest_first() -> None:
    spoiled = torch.where(LOCAL == 5.0, torch.nan, LOCAL)
    rule = Decided(sending(2, 102.0))
    done = contact(STATE, spoiled, MEETING, terms(rule, checks=Checks(allow_divergence=True)))
    assert not done.offer.is_finite
    assert rule.seen[0].update_norm_sq == 1e100
    assert rule.seen[0].profile is None
    assert done.sent is not None
    assert done.sent.indices.tolist() == [4, 7, 8]
    assert math.isnan(done.sent.values[0])
    assert done.sent.values[1] == -6.0


def test_chance_is_that_of_seed_device_and_round() -> None:
    @dataclass(frozen=True)
    class Drawn(Compressor):
        numbers: list[float] = field(default_factory=list, compare=False)

        def select(self, vector: Tensor, entries: int, draw: Callable[[], np.random.Generator]) -> Sparse:
            self.numbers.append(draw().random())
            return top_k(vector, entries)

    compressor = Drawn()
    for seed, device, round_ in ((0, 3, 7), (0, 3, 7), (1, 3, 7), (0, 4, 7), (0, 3, 8)):
        meeting = replace(MEETING, device=device, round=round_)
        contact(STATE, LOCAL, meeting, terms(Decided(sending(3, 137.0)), compressor, seed=seed))
    assert compressor.numbers[0] == compressor.numbers[1]
    assert len(set(compressor.numbers)) == 4


def test_what_a_device_computed_is_with_it_or_with_its_relay() -> None:
    x = undelivered(STATE, LOCAL)
    assert torch.equal(x, UPDATE)
    left = hand_over(STATE, x)
    assert undelivered(left, LOCAL).tolist() == [0.0] * 9
    assert left.memory.tolist() == (LOCAL - STATE.received).tolist()
    newer = torch.arange(9.0)
    taken, local = take_model(STATE, x, newer, 6, torch.zeros(9))
    assert torch.equal(undelivered(taken, local), x)
    assert torch.equal(local, newer - x)
    assert (taken.received_round, taken.memory.tolist()) == (6, [0.0] * 9)


def test_a_coded_upload_of_nothing_costs_nothing() -> None:
    nothing = sending(0, 0.0, power_watts=0.0, energy_joules=0.0, value_bits=4)
    done = contact(STATE, LOCAL, MEETING, terms(Decided(nothing)))
    assert done.sent is not None
    assert (len(done.sent), done.upload.bits, done.state.spent_joules) == (0, 0.0, 4.0)


@dataclass(frozen=True)
class CountingMemory(ErrorFeedback):
    """Counts the updates that it offered."""

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return memory + change, {"offered": state.get("offered", torch.zeros(1)) + 1}


@dataclass(frozen=True)
class CountingSteps(LocalRule):
    """Counts the updates that arrived."""

    def delivered(self, state: State, change: Tensor) -> State:
        return {"arrived": state.get("arrived", torch.zeros(1)) + 1}


def test_states_of_the_memory_and_of_local_steps_follow_a_contact() -> None:
    rule = Decided(sending(3, 3 * 35.0 + 32.0))
    method = replace(made_of(rule), memory=CountingMemory(), local=CountingSteps())
    twice = STATE
    for arrived in (1, 2):
        done = contact(twice, LOCAL, MEETING, replace(terms(rule), method=method))
        assert done.offer.memory_state["offered"] == arrived
        assert done.state.memory_state["offered"] == arrived
        assert done.state.local_state["arrived"] == arrived
        twice = replace(STATE, memory_state=done.state.memory_state, local_state=done.state.local_state)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_statistics_travel_with_coded_entries_and_are_not_counted_as_such(in_pieces: bool) -> None:
    link = replace(LINK, parameters=4000, bandwidth_hz=1e4, dense_bits=128_320.0, statistics_bits=320.0)
    update = torch.from_numpy(np.random.default_rng(0).standard_t(4, 4010).astype(np.float32))
    state = replace(STATE, received=update, memory=torch.zeros(4010))
    upload = sending(2000, 20_000.0, energy_joules=0.2, value_bits=4, max_entries=2000 if in_pieces else None)
    of = terms(Decided(upload), link=link)
    offer = make_offer(state, update, replace(MEETING, contact_s=0.6), of, staleness_rounds=1)
    done = transmit(offer, upload, of)
    assert done.sent is not None
    statistics = int((done.sent.indices >= 4000).sum())
    assert statistics == 10
    assert done.upload.entries == len(done.sent) - statistics > 0
    pieces = coded_pieces(done)
    assert sum(piece.statistics for piece in pieces) == statistics
    assert sum(len(piece.kept) for piece in pieces) == len(done.sent)
    assert all(torch.equal(piece.kept.values, update[piece.kept.indices]) for piece in pieces)
    # In a contact that ends at once nothing arrives, statistics included.
    assert transmit(offer, upload, of, lasts_s=1e-6).upload.entries == 0


def test_a_coded_upload_that_diverged_has_plain_values() -> None:
    spoiled = torch.where(LOCAL == 5.0, torch.inf, LOCAL)
    rule = Decided(sending(2, 102.0, value_bits=4))
    done = contact(STATE, spoiled, MEETING, terms(rule, checks=Checks(allow_divergence=True)))
    assert [message.value_bits for message in done.messages] == [32]
