"""Decisions at each limit are accepted; decisions beyond it are rejected by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.device.by_hand import GAIN_PER_WATT, LINK, LOCAL, MEETING, STATE, Decided, made_of, sending, terms

from wayfare.codec.values import quantise
from wayfare.device import Checks, Transmission, contact
from wayfare.errors import DivergenceError, InvariantError
from wayfare.methods import Encounter
from wayfare.methods.servers import Mix
from wayfare.sparsify import Sparse, top_k

ENCOUNTER = Encounter(
    contact_s=1.0,
    gain_per_watt=GAIN_PER_WATT,
    staleness_rounds=1,
    update_norm_sq=1.0,
    backlog_joules=0.0,
    spent_joules=0.0,
    budget_joules=1.0,
    round=1,
    rounds=10,
    met_s=1.0,
)
METHOD = made_of(Decided(sending(3, 137.0)))
BY_BITS = 0.2 * 137 / 2000  # J


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, None),
        ({"entries": 0, "bits": 0.0, "power_watts": 0.0, "energy_joules": 0.0}, None),
        ({"entries": 0, "bits": 0.0, "power_watts": 0.0, "energy_joules": 0.0, "completes": False}, None),
        ({"entries": 8, "bits": 288.0, "energy_joules": 0.0288}, None),
        ({"entries": 9, "bits": 347.0, "energy_joules": 0.0347}, "entries = 9"),
        ({"entries": -1}, "entries = -1, must be 0 to 8 parameters"),
        ({"entries": 4}, "bits = 137.0"),
        ({"entries": 7, "bits": 276.0, "energy_joules": 0.0277}, "bits = 276.0, must be at least 277"),
        ({"bits": 137 * (1 - 5e-10)}, None),
        ({"bits": 137 * (1 - 3e-9)}, "bits = "),
        ({"energy_joules": BY_BITS * (1 - 5e-10)}, None),
        ({"energy_joules": BY_BITS * (1 - 3e-9)}, "energy_joules = "),
        ({"energy_joules": 0.2}, None),
        ({"energy_joules": 0.2 * (1 + 3e-9)}, "energy_joules = "),
        ({"energy_joules": 0.21}, "energy_joules = "),
        ({"bits": 2000.0}, None),
        ({"bits": 2000.1}, "bits = 2000.1"),
        ({"bits": 0.0, "value_bits": 4, "energy_joules": 0.0}, None),
        ({"bits": -1.0, "value_bits": 4, "energy_joules": 0.0}, "bits = -1.0, must be 0 to 2000"),
        ({"power_watts": 0.2 * (1 + 5e-10)}, None),
        ({"power_watts": 0.2 * (1 + 3e-9)}, "power_watts = "),
        ({"power_watts": 0.2 * (1 + 1e-9)}, None),
        ({"power_watts": -1e-12, "energy_joules": 0.0}, "power_watts = -1e-12"),
        ({"power_watts": -5.0, "energy_joules": 0.0}, "power_watts = -5.0"),
        ({"completes": False}, "must be 0 in an upload that does not complete"),
    ],
)
def test_a_decision_within_the_rules_is_taken_and_one_beyond_is_not(
    changes: dict[str, float], refused: str | None
) -> None:
    upload = replace(sending(3, 137.0), **changes)
    if refused is None:
        assert Checks().upload(ENCOUNTER, upload, LINK, METHOD) == upload
        return
    with pytest.raises(InvariantError) as caught:
        Checks().upload(ENCOUNTER, upload, LINK, METHOD)
    assert refused in str(caught.value)


@pytest.mark.parametrize(("backlog_joules", "holds"), [(0.0, True), (0.5, True), (-1e-9, False)])
def test_a_backlog_is_never_negative(backlog_joules: float, holds: bool) -> None:
    encounter = replace(ENCOUNTER, backlog_joules=backlog_joules)
    if holds:
        Checks().upload(encounter, sending(3, 137.0), LINK, METHOD)
        return
    with pytest.raises(InvariantError, match="backlog_joules = -1e-09, must be 0 or more"):
        Checks().upload(encounter, sending(3, 137.0), LINK, METHOD)


def test_models_are_mixed_whole_or_not_at_all() -> None:
    mixing = made_of(Decided(sending(8, 288.0)), server=Mix())
    for entries, bits in ((0, 0.0), (8, 288.0)):
        Checks().upload(ENCOUNTER, sending(entries, bits), LINK, mixing)
    with pytest.raises(InvariantError, match="0 or all if the server mixes models"):
        Checks().upload(ENCOUNTER, sending(3, 137.0), LINK, mixing)


def test_a_norm_that_is_no_number_is_shown_as_a_very_large_one_where_that_is_allowed() -> None:
    assert Checks().encounter(ENCOUNTER) is ENCOUNTER
    for norm_sq in (math.nan, math.inf):
        odd = replace(ENCOUNTER, update_norm_sq=norm_sq)
        with pytest.raises(DivergenceError, match="contains"):
            Checks().encounter(odd)
        assert Checks(allow_divergence=True).encounter(odd).update_norm_sq == 1e100


def done(entries: int = 3) -> Transmission:
    bits = entries * 35.0 + 32.0 if entries else 0.0
    return contact(STATE, LOCAL, MEETING, terms(Decided(sending(entries, bits))))


PARANOID = Checks(paranoid=True)


def test_what_was_sent_and_remembered_is_all_that_there_was() -> None:
    for entries in (0, 1, 3, 8):
        PARANOID.transmitted(done(entries), METHOD)
    sound = done()
    lost = replace(sound, state=replace(sound.state, memory=sound.state.memory + 1e-6))
    Checks().transmitted(lost, METHOD)
    with pytest.raises(InvariantError, match="neither sent nor kept in memory"):
        PARANOID.transmitted(lost, METHOD)
    PARANOID.transmitted(replace(lost, sent=None), METHOD)


def test_an_entry_is_sent_once() -> None:
    sound = done()
    assert sound.sent is not None
    for indices in ([2, 2, 7, 8], [4, 2, 7, 8]):
        twice = replace(sound, sent=Sparse(torch.tensor(indices), sound.sent.values))
        with pytest.raises(InvariantError, match="an entry was sent twice"):
            PARANOID.transmitted(twice, METHOD)


def chosen(indices: list[int], *, in_pieces: bool = False) -> Transmission:
    """Parameters 4, 2, 1, 4, ... and so on; some of them sent."""
    sound = done()
    update = torch.tensor([4.0, 2.0, 1.0, 4.0, 0.5, 0.0, 0.0, 0.0, 0.1])
    places = torch.tensor([*indices, 8])
    memory = update.index_fill(0, places, 0.0)
    return replace(
        sound,
        offer=replace(sound.offer, update=update),
        sent=Sparse(places, update[places]),
        state=replace(sound.state, memory=memory),
        upload=replace(sound.upload, max_entries=5 if in_pieces else None),
    )


def test_what_is_sent_is_the_largest_and_in_pieces_at_least_half_as_large() -> None:
    for indices in ([0], [3], [0, 3], [0, 1, 3]):
        PARANOID.transmitted(chosen(indices), METHOD)
    for indices in ([0, 1], [1], [0, 2, 3]):
        with pytest.raises(InvariantError, match="although a larger one was not"):
            PARANOID.transmitted(chosen(indices), METHOD)
    PARANOID.transmitted(chosen([0, 1], in_pieces=True), METHOD)
    with pytest.raises(InvariantError, match="although a larger one was not"):
        PARANOID.transmitted(chosen([0, 2], in_pieces=True), METHOD)


def test_quantised_values_are_remembered_to_the_last_digit() -> None:
    sound = done()
    update = torch.linspace(-3, 3, 9)
    kept = top_k(update[:8], 4)
    values = quantise(kept.values, 4)[2]()
    sent = Sparse(torch.cat([kept.indices, torch.tensor([8])]), torch.cat([values, update[8:]]))
    memory = update.index_add(0, sent.indices, -sent.values)
    coded = replace(
        sound,
        offer=replace(sound.offer, update=update),
        sent=sent,
        state=replace(sound.state, memory=memory),
        upload=replace(sound.upload, value_bits=4),
    )
    PARANOID.transmitted(coded, METHOD)
    eps = torch.finfo(torch.float32).eps
    for off, holds in ((0.4 * eps * update.abs(), True), (4 * eps * update.abs(), False)):
        near = replace(coded, state=replace(coded.state, memory=memory + off))
        if holds:
            PARANOID.transmitted(near, METHOD)
            continue
        with pytest.raises(InvariantError, match="neither sent nor kept in memory"):
            PARANOID.transmitted(near, METHOD)


@pytest.mark.parametrize(
    ("checks", "norms_sq", "stops"),
    [
        (Checks(), [], False),
        (Checks(), [1e60], False),
        (Checks(), [1.0, 2e60], True),
        (PARANOID, [], True),
        (Checks(paranoid=True, allow_divergence=True), [1e70], False),
    ],
)
def test_a_global_model_is_looked_at_when_an_update_was_large_enough_to_spoil_it(
    checks: Checks, norms_sq: list[float], stops: bool
) -> None:
    spoiled = torch.tensor([1.0, math.inf])
    checks.aggregated(torch.ones(2), norms_sq, 5)
    if not stops:
        checks.aggregated(spoiled, norms_sq, 5)
        return
    with pytest.raises(DivergenceError, match="in round 5: the global model contains NaN or infinity"):
        checks.aggregated(spoiled, norms_sq, 5)


def test_a_loss_that_is_no_number_ends_a_run_unless_that_is_allowed() -> None:
    Checks().evaluated(0.5, 1)
    Checks(allow_divergence=True).evaluated(math.nan, 1)
    with pytest.raises(DivergenceError, match="in round 6: the loss"):
        Checks().evaluated(math.inf, 6)
