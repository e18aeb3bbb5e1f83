"""Directions of updates: a device that harms the model loses weight, and one with unusual data does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from wayfare.errors import ScenarioError
from wayfare.methods import Arrival, ServerTerms, make_method
from wayfare.methods.directions import sketch_of
from wayfare.methods.guard import Guard
from wayfare.methods.servers import Add
from wayfare.methods.states import same_state
from wayfare.scenario import Scenario
from wayfare.server import ServerState, aggregate, begin_server
from wayfare.sparsify import Sparse

ENTRIES, DEVICES, HOSTILE = 400, 10, 3
TERMS = ServerTerms(devices=DEVICES)
ALL = torch.arange(ENTRIES)


def optimum(device: int) -> Tensor:
    """Where a device's own loss is least; all differ, and device 7's is far from the others."""
    own = torch.randn(ENTRIES, generator=torch.Generator().manual_seed(device))
    return own * (0.06 if device == 7 else 0.02)


def fleet(update_of: object = None, *, rounds: int = 40, guard: Guard | None = None) -> ServerState:
    """Ten devices with a quadratic loss each, half of them in each round; ``update_of`` changes the hostile one's."""
    guard = guard or Guard()
    state = begin_server(torch.zeros(ENTRIES), Add(), TERMS, averages=False, guard=guard)
    received, sent = dict.fromkeys(range(DEVICES), state.model), list[Tensor]()
    for round_ in range(1, rounds + 1):
        arrivals = []
        for device in range(round_ % 2, DEVICES, 2):
            update = 0.5 * (received[device] - optimum(device))
            if device == HOSTILE and callable(update_of):
                sent.append(update)
                update = update_of(sent)
            arrivals.append(Arrival(device=device, sent=Sparse(ALL, update), round=round_))
        state = aggregate(state, Add(), arrivals, TERMS, guard)
        received |= {arrival.device: state.model for arrival in arrivals}
    return state


def weights(state: ServerState) -> list[float]:
    return [state.guard_state["directions"][str(device)]["weight"] for device in range(DEVICES)]


def test_honest_devices_keep_their_weight_and_an_unusual_one_most_of_it() -> None:
    found = weights(fleet())
    assert found.pop(7) >= 0.7
    assert min(found) == 1.0


def test_a_device_that_reacts_the_wrong_way_round_loses_its_weight() -> None:
    found = weights(fleet(lambda sent: -sent[-1]))
    assert found.pop(HOSTILE) == 0.0
    assert min(found) >= 0.7


def test_a_device_that_repeats_its_first_update_loses_weight() -> None:
    found = weights(fleet(lambda sent: sent[0]))
    assert found.pop(HOSTILE) < 0.5
    assert min(found) >= 0.7


def test_without_directions_nothing_is_judged() -> None:
    state = fleet(lambda sent: -sent[-1], guard=Guard(directions=False))
    assert not state.guard_state["directions"]


def test_a_sketch_keeps_inner_products() -> None:
    rng = torch.Generator().manual_seed(0)
    one, noise = torch.randn(20_000, generator=rng), torch.randn(20_000, generator=rng)
    other, places = 0.6 * one + 0.8 * noise, torch.arange(20_000)
    first, second = sketch_of(places, one, 20_000), sketch_of(places, other, 20_000)
    cosine = first @ second / np.sqrt((first @ first) * (second @ second))
    assert cosine == pytest.approx(0.6, abs=0.08)
    # Entries that were not sent count as zeros.
    half = places[::2]
    assert sketch_of(half, one[::2], 20_000) @ first == pytest.approx(float(one[::2].square().sum()), rel=0.1)


def test_a_sketch_of_a_large_model_uses_the_same_entries_of_every_update() -> None:
    entries = 1_000_000
    places, values = torch.arange(entries), torch.randn(entries, generator=torch.Generator().manual_seed(0))
    some = places[::3]
    sparse = torch.zeros(entries).index_copy_(0, some, values[some])
    assert np.allclose(sketch_of(some, values[some], entries), sketch_of(places, sparse, entries))


def test_the_judgement_is_a_function_of_the_arrivals() -> None:
    assert same_state(fleet().guard_state, fleet().guard_state)


def test_a_released_device_is_judged_afresh() -> None:
    guard = Guard()
    state = guard.released(fleet(lambda sent: -sent[-1]).guard_state, HOSTILE)
    assert str(HOSTILE) not in state["directions"]
    assert "sum" in state["path"]


def test_directions_are_composed_as_a_number() -> None:
    method = make_method("mads + guard(directions=0)", Scenario())
    assert method.guard == Guard(directions=False)
    with pytest.raises(ScenarioError, match="directions = 7: must be 0 or 1"):
        Guard(directions=7)  # type: ignore[arg-type]
