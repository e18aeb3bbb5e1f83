"""Invariants are checked during a run, and a violation ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import wayfare
from tests.simulator.test_simulator import CHOICES, SCHEMES, Notes
from wayfare import sparsify
from wayfare.engine import Burst
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.errors import DivergenceError, InvariantError
from wayfare.methods import Arrival, Recipe, ServerRule, ServerTerms, make_method
from wayfare.scenario import Scenario
from wayfare.simulator import Checks, Simulation
from wayfare.sparsify import Sparse
from wayfare.world import draw_world


def simulate(scenario: Scenario, scheme: Recipe, checks: Checks) -> Notes:
    notes = Notes()
    Simulation(draw_world(scenario, 0), make_method(scheme, scenario), notes, engine="stacked", checks=checks).run()
    return notes


@pytest.mark.parametrize("name", CHOICES)
def test_all_checks_hold_in_a_sound_run_and_change_nothing(name: str, small: Scenario) -> None:
    scheme = make_method(name, small)
    assert simulate(small, scheme, Checks(paranoid=True)) == simulate(small, scheme, Checks())


class Wrong(wayfare.UploadRule):
    """Makes a valid decision, then changes one number."""

    name = "wrong"

    def __init__(self, **changes: object) -> None:
        self.changes = changes

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        sent = wayfare.send_top_k(encounter, link, link.max_power_watts)
        values = {name: getattr(sent, name) for name in sent.__slots__}
        return wayfare.Upload(**{**values, **self.changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entries": 10**9}, "entries = 1000000000, must be 0 to 3322 parameters"),
        ({"entries": -1}, "entries = -1, must be"),
        ({"entries": math.nan}, "not a valid upload"),
        ({"entries": None}, "not a valid upload"),
        ({"completes": False, "entries": 5}, "must be 0 in an upload that does not complete"),
        ({"energy_joules": -1e-9}, "energy_joules = -1e-09, must be 0 to"),
        ({"energy_joules": 1e9}, "the energy of the contact at that power"),
        ({"energy_joules": math.nan}, "energy_joules = nan"),
        ({"power_watts": 1e3}, "power_watts = 1000.0, must be 0 to 0.2 W"),
        ({"power_watts": math.nan}, "power_watts = nan"),
        ({"entries": 100.5}, "entries = 100.5 is not an integer"),
        ({"value_bits": 8.5}, "value_bits = 8.5 is not an integer"),
        ({"max_entries": 7.5}, "max_entries = 7.5 is not an integer"),
        ({"bits": 0.0}, "entries on this link"),
        ({"entries": 3322}, "the cost of 3322 entries on this link"),
        ({"energy_joules": 0.0}, "bits at 0.2 W"),
        ({"bits": 1e15}, "the capacity of the contact at that power"),
        (
            {"power_watts": 0.0, "energy_joules": 0.0, "entries": 7, "bits": 7.0},
            "the capacity of the contact at that power",
        ),
    ],
)
def test_a_decision_that_cannot_be_ends_the_run_and_names_round_device_and_rule(
    changes: dict[str, object], message: str, small: Scenario
) -> None:
    with pytest.raises(InvariantError, match=r"round \d+, device \d, scheme wrong: ") as caught:
        simulate(small, Wrong(**changes), Checks())
    assert message in str(caught.value)


def test_what_is_no_upload_at_all_is_told(small: Scenario) -> None:
    class Silent(wayfare.UploadRule):
        name = "silent"

        def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
            return None  # type: ignore[return-value]

    with pytest.raises(InvariantError, match="decided on None, not a valid upload"):
        simulate(small, Silent(), Checks())


def test_paranoia_finds_updates_that_are_lost(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = make_method("mads", small)
    forget = lambda vector, sent: torch.zeros_like(vector)  # noqa: E731
    monkeypatch.setattr(sparsify, "remainder", forget)
    simulate(small, scheme, Checks())
    with pytest.raises(InvariantError, match="neither sent nor kept in memory"):
        simulate(small, scheme, Checks(paranoid=True))


def test_paranoia_finds_entries_that_are_not_the_largest(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(vector: torch.Tensor, k: int) -> Sparse:
        return Sparse(torch.arange(k), vector[:k].clone())

    monkeypatch.setattr(sparsify, "top_k", first)
    with pytest.raises(InvariantError, match="although a larger one was not"):
        simulate(small, make_method("mads", small), Checks(paranoid=True))


def test_paranoia_finds_mass_that_an_engine_makes_up(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    from wayfare import server

    aggregate, calls = server.aggregate, [0]

    def twice(
        state: server.ServerState, rule: ServerRule, arrivals: Sequence[Arrival], terms: ServerTerms, *guard: Any
    ) -> server.ServerState:
        calls[0] += bool(arrivals)
        once = aggregate(state, rule, arrivals, terms, *guard)
        return aggregate(once, rule, arrivals[:1] if calls[0] == 5 else [], terms, *guard)

    monkeypatch.setattr(server, "aggregate", twice)
    with pytest.raises(InvariantError, match="lost or counted twice"):
        simulate(small, make_method("mads", small), Checks(paranoid=True))


SERVER_RULES = {
    "add": ("mads", "sgd"),
    "a step of sgd": ("mads", 0.5),
    "momentum": ("mads", "momentum"),
    "buffer": ("afl-spar:unlimited + buffer(size=3, step=0.5)", "sgd"),
    "dynamic-server": ("afl-spar + dynamic-server + dynamic-regulariser", "sgd"),
}


@pytest.mark.parametrize("name", SERVER_RULES)
def test_paranoia_looks_at_what_a_server_rule_made_of_what_arrived(
    name: str, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, server = SERVER_RULES[name]
    settings = {"optimizer": server} if isinstance(server, str) else {"step": server}
    scenario = small.model_copy(update={"server": small.server.model_copy(update=settings)})
    method = make_method(recipe, scenario)
    assert simulate(scenario, method, Checks(paranoid=True)).contacts
    apply, calls = type(method.server).apply, [0]

    def loses_one(rule: ServerRule, model: object, state: object, arrivals: Sequence[Arrival], terms: object) -> object:
        calls[0] += 1
        return apply(rule, model, state, arrivals[1:] if calls[0] == 5 else arrivals, terms)  # type: ignore[arg-type]

    monkeypatch.setattr(type(method.server), "apply", loses_one)
    with pytest.raises(InvariantError, match="lost or counted twice"):
        simulate(scenario, method, Checks(paranoid=True))


def spoil(monkeypatch: pytest.MonkeyPatch, value: float, from_round: int = 30) -> None:
    """From a given round on, device 3 computes NaN."""
    run = StackedMlp.run

    def spoiled(self: StackedMlp, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        run(self, models, bursts)
        for model, burst in zip(models, bursts, strict=True):
            if burst.device == 3 and burst.first_round + burst.rounds > from_round:
                model[7] = value

    monkeypatch.setattr(StackedMlp, "run", spoiled)


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "NaN"), (math.inf, "infinity")])
def test_an_update_that_diverges_ends_the_run_at_the_contact_with_device_and_round(
    value: float, kind: str, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, value)
    with pytest.raises(DivergenceError, match=rf"in round \d+: the update of device 3 contains {kind}"):
        simulate(small, make_method("mads", small), Checks())


@pytest.mark.parametrize("name", SCHEMES)
def test_divergence_that_is_allowed_is_recorded_and_goes_on(
    name: str, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, math.nan)
    # With so much energy nobody stops training before that round.
    ample = small.model_copy(update={"fleet": small.fleet.model_copy(update={"energy_total_joules": 1e3})})
    notes = simulate(ample, make_method(name, small), Checks(allow_divergence=True, paranoid=True))
    assert notes.rounds[-1] == 60
    assert any(math.isnan(event.update_norm_sq) for event in notes.contacts)
    assert all(math.isfinite(event.energy_joules) for event in notes.contacts)


def test_a_learning_rate_that_is_far_too_large_is_told(small: Scenario) -> None:
    learning = small.learning.model_copy(update={"learning_rate": 1e6})
    wild = small.model_copy(update={"learning": learning})
    with pytest.raises(DivergenceError, match="training diverged in round"):
        simulate(wild, make_method("optimal", wild), Checks())
    notes = simulate(wild, make_method("optimal", wild), Checks(allow_divergence=True))
    assert any(not math.isfinite(event.loss) for event in notes.evaluations)


def test_a_global_model_that_comes_to_infinity_is_told_in_its_round(small: Scenario) -> None:
    checks, huge = Checks(), torch.tensor([1.0, math.inf])
    checks.aggregated(huge, [1.0, 2.0], 5)  # no update was large enough to do that
    with pytest.raises(DivergenceError, match="in round 5: the global model contains NaN or infinity"):
        checks.aggregated(huge, [1.0, 1e70], 5)
    Checks(allow_divergence=True).aggregated(huge, [1e70], 5)
    with pytest.raises(DivergenceError, match="in round 6: the loss of the global model is nan"):
        checks.evaluated(math.nan, 6)
