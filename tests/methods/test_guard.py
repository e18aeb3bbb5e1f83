"""The guard: what passes, what is scaled down, who is quarantined, and who is released."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import Arrival, ServerTerms, State, make_method
from wayfare.methods.guard import Guard
from wayfare.methods.robust import GeometricMedian, TrimmedMean
from wayfare.methods.servers import Add, Mix
from wayfare.methods.states import same_state
from wayfare.server import ServerState, aggregate, begin_server
from wayfare.simulator import Observer, Simulation
from wayfare.simulator.checkpoint import state_from_plain
from wayfare.sparsify import Sparse
from wayfare.world import draw_world

ENTRIES, TERMS = 50, ServerTerms(devices=10)
MODEL, GUARD = torch.ones(ENTRIES), Guard()


def arrival(device: int, values: Tensor | float, *, round_: int = 1) -> Arrival:
    """An update of one value in all entries, or of these values."""
    values = values if isinstance(values, Tensor) else torch.full((ENTRIES,), values)
    return Arrival(device=device, sent=Sparse(torch.arange(ENTRIES), values), round=round_)


def usual(guard: Guard = GUARD, devices: int = 5) -> ServerState:
    """A server that has seen honest devices, whose updates have a norm of 0.1 sqrt(50)."""
    state = begin_server(MODEL, Add(), TERMS, averages=False, guard=guard)
    for round_ in range(1, 9):
        state = aggregate(state, Add(), [arrival(n, 0.1, round_=round_) for n in range(devices)], TERMS, guard)
    return state


def moved(state: ServerState, *arrivals: Arrival, guard: Guard = GUARD) -> tuple[float, ServerState]:
    """How far some arrivals move the model, in updates of the usual norm divided by the fleet."""
    after = aggregate(state, Add(), list(arrivals), TERMS, guard)
    return float((state.model - after.model).norm()) / (0.1 * math.sqrt(ENTRIES) / TERMS.devices), after


def test_usual_updates_pass_unchanged() -> None:
    guarded, plain = usual(), begin_server(MODEL, Add(), TERMS, averages=False)
    for round_ in range(1, 9):
        plain = aggregate(plain, Add(), [arrival(n, 0.1, round_=round_) for n in range(5)], TERMS)
    assert torch.equal(guarded.model, plain.model)


def test_a_larger_update_is_scaled_down_to_twice_the_median_norm() -> None:
    assert moved(usual(), arrival(3, 0.15))[0] == pytest.approx(1.5, rel=1e-4)
    assert moved(usual(), arrival(3, 0.9))[0] == pytest.approx(2.0, rel=1e-4)
    assert moved(usual(Guard(clip=3.0)), arrival(3, 0.9), guard=Guard(clip=3.0))[0] == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize("value", [9_999.0, -1.1, math.nan, math.inf, 3e38])
def test_absurd_updates_are_dropped_and_their_device_is_quarantined_after_the_third(value: float) -> None:
    state = usual()
    for times in (1, 2, 3):
        distance, state = moved(state, arrival(3, value, round_=20 + times))
        assert distance == 0
        assert ("3" in state.guard_state["quarantined"]) == (times == 3)
    assert state.guard_state["quarantined"] == {"3": 23}
    assert moved(state, arrival(3, 0.1))[0] == 0
    assert moved(state, arrival(2, 0.1))[0] == pytest.approx(1.0, rel=1e-4)


def test_an_outlier_between_good_updates_does_not_lead_to_quarantine() -> None:
    state = usual()
    for value in (5.0, 5.0, 0.1, 5.0, 5.0):
        _, state = moved(state, arrival(3, value))
    assert not state.guard_state["quarantined"]


def test_a_released_device_counts_again() -> None:
    state = usual()
    for _ in range(3):
        _, state = moved(state, arrival(3, 50.0))
    state = replace(state, guard_state=Guard().released(state.guard_state, 3))
    assert moved(state, arrival(3, 0.1))[0] == pytest.approx(1.0, rel=1e-4)
    assert not state.guard_state["quarantined"]


def test_the_very_first_update_cannot_exceed_the_model() -> None:
    state = begin_server(MODEL, Add(), TERMS, averages=False, guard=Guard())
    after = aggregate(state, Add(), [arrival(0, 3.0)], TERMS, Guard())
    assert float((state.model - after.model).norm()) == pytest.approx(float(MODEL.norm()) / TERMS.devices, rel=1e-4)
    assert torch.equal(aggregate(state, Add(), [arrival(0, 9_999.0)], TERMS, Guard()).model, MODEL)


def test_one_device_with_many_uploads_has_one_vote_and_a_bounded_weight() -> None:
    state = usual()
    total = 0.0
    for round_ in range(100):
        distance, state = moved(state, arrival(4, 0.19, round_=round_))
        total += distance
    # Twice the weight of eight usual updates, and five more at the clip, less its own eight.
    assert total == pytest.approx(2 * 8 + 5 * 2 - 8, rel=0.1)
    assert moved(state, arrival(1, 0.9))[0] == pytest.approx(2.0, rel=1e-4)
    # When the others go on, so may this one.
    for _ in range(5):
        state = aggregate(state, Add(), [arrival(n, 0.1) for n in range(4)], TERMS, Guard())
    assert moved(state, arrival(4, 0.1))[0] == pytest.approx(1.0, rel=1e-4)


def test_weights_stay_bounded_and_latecomers_start_like_the_others() -> None:
    guard, state = Guard(), usual()
    for round_ in range(200):
        state = aggregate(state, Add(), [arrival(n, 0.1, round_=round_) for n in range(5)], TERMS, guard)
    weights = state.guard_state["weights"]
    assert max(weights.values()) < 45 * 0.1 * math.sqrt(ENTRIES)
    state = aggregate(state, Add(), [arrival(7, 0.1)], TERMS, guard)
    assert state.guard_state["weights"]["7"] > 0.9 * weights["0"]


def test_models_are_pulled_towards_the_global_model() -> None:
    guard, rule = Guard(), Mix()
    state = begin_server(MODEL, rule, TERMS, averages=False, guard=guard)
    for _ in range(3):
        state = aggregate(state, rule, [arrival(n, state.model + 0.1) for n in range(4)], TERMS, guard)
    passed, _ = guard.screen(state.model, state.guard_state, [arrival(1, state.model + 0.9)], rule)
    honest, _ = guard.screen(state.model, state.guard_state, [arrival(1, state.model + 0.1)], rule)
    assert float((passed[0].sent.values - state.model).max()) < 0.35
    assert torch.allclose(honest[0].sent.values, state.model + 0.1)
    assert guard.screen(state.model, state.guard_state, [arrival(1, 9_999.0)], rule)[0] == []


@pytest.mark.parametrize("values", [{"clip": 0.0}, {"share": 1.0}, {"outlier": math.inf}, {"strikes": 0}])
def test_bad_values_are_named(values: dict[str, float]) -> None:
    with pytest.raises(ScenarioError, match=next(iter(values))):
        Guard(**values)  # type: ignore[arg-type]


class _Scores(Observer):
    pass


def _simulation(scheme: str) -> Simulation:
    scenario = wayfare.load(
        "fashion-small", ["fleet.devices=4", "rounds=60", "learning.hidden=[8]", "fleet.energy_total_joules=6"]
    )
    return Simulation(draw_world(scenario, 0), make_method(scheme, scenario), _Scores())


def test_a_guard_is_composed_like_a_part_and_resumes_with_its_state() -> None:
    whole = _simulation("mads + guard(clip=1.5)")
    end = whole.run().model
    half = _simulation("mads + guard(clip=1.5)")
    half.restore(state_from_plain(whole.state().plain()))
    assert same_state(half.state().server.guard_state, whole.state().server.guard_state)
    assert whole.state().server.guard_state["usual"]
    assert not torch.equal(end, _simulation("mads").run().model)
    with pytest.raises(ValueError, match="another guard"):
        _simulation("mads").restore(whole.state())


def test_robust_centres_ignore_a_minority() -> None:
    honest = [torch.full((4,), value) for value in (0.9, 1.0, 1.1, 1.0)]
    updates = [*honest, torch.full((4,), -1e6)]
    assert torch.allclose(TrimmedMean().centre(updates), torch.full((4,), 0.9667), atol=1e-3)
    assert torch.allclose(GeometricMedian().centre(updates), torch.ones(4), atol=0.05)
    assert torch.allclose(GeometricMedian().centre([torch.zeros(4)] * 5), torch.zeros(4))


def test_a_robust_rule_steps_when_its_buffer_is_full() -> None:
    rule: TrimmedMean = TrimmedMean(size=3)
    model, state = MODEL, rule.init(MODEL, TERMS)
    for device, value in enumerate((0.1, 0.2, 50.0)):
        before: State = state
        model, state = rule.apply(model, state, [arrival(device, value)], TERMS)
        assert before is not state
    assert torch.allclose(model, MODEL - 0.2)
    assert state == {"buffer": {}}
    with pytest.raises(ScenarioError, match="below half"):
        TrimmedMean(size=4, trim=2)
