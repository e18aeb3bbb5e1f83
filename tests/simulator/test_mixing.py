"""FedAsync: the server mixes models instead of adding updates."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch

from tests.simulator.test_relays import steps
from tests.simulator.test_simulator import Notes, simulate
from wayfare.errors import InvariantError, ScenarioError
from wayfare.methods import Arrival, ServerTerms, compose, make_method
from wayfare.methods.servers import Mix
from wayfare.scenario import Scenario
from wayfare.scenario.exchange import Mixing
from wayfare.simulator import Checks, Simulation
from wayfare.sparsify import Sparse
from wayfare.world import draw_world


@pytest.mark.parametrize("name", ["fedasync", "fedasync:constant", "fedasync:hinge"])
def test_a_run_is_the_loop_that_its_authors_wrote(name: str, small: Scenario) -> None:
    scenario = small.model_copy(update={"rounds": 25})
    world = draw_world(scenario, 0)
    found, notes = simulate(world, f"{name}:unlimited", engine="reference")
    weight_of = make_method(name, scenario).server.weight  # type: ignore[attr-defined]
    model, received = world.initial_model, dict[int, tuple[torch.Tensor, int]]()
    outcome = {(event.round, event.device): event.completed for event in notes.contacts}
    failures = 0
    for round_ in range(1, 26):
        met = []
        for device in range(6):
            if (round_, device) not in outcome:
                continue
            if not outcome[round_, device]:
                failures += 1
                continue
            start, since = received.get(device, (world.initial_model, 0))
            local = steps(world, device, start, since + 1, round_)
            weight = weight_of(round_ - since)
            model = (1 - weight) * model + weight * local
            met.append(device)
        for device in met:
            received[device] = (model, round_)
    assert len(received) > 3
    assert failures
    torch.testing.assert_close(found.model, model, rtol=0, atol=1e-6)


def test_models_of_one_round_are_mixed_one_after_the_other() -> None:
    before, terms = torch.zeros(3), ServerTerms(devices=5)
    whole = [Sparse(torch.arange(3), torch.full((3,), value)) for value in (1.0, 2.0)]
    arrivals = [Arrival(device=device, sent=sent) for device, sent in enumerate(whole)]
    mixed, _ = Mix("constant", Mixing(weight=0.5)).apply(before, {}, arrivals, terms)
    assert mixed.tolist() == [1.25] * 3
    assert before.tolist() == [0.0] * 3


def test_a_paranoid_run_says_that_there_is_no_mass_to_balance(
    small: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    world = draw_world(small, 0)
    with caplog.at_level(logging.WARNING, "wayfare"):
        Simulation(world, make_method("fedasync", small), Notes(), checks=Checks(paranoid=True)).run()
    assert "fedasync mixes models at the server, so mass is not balanced" in caplog.text


@dataclass(frozen=True)
class OwnMix(Mix):
    """Mixes with a weight that may be invalid."""

    own: float = 0.5

    def weight(self, staleness_rounds: int) -> float:
        return self.own


@pytest.mark.parametrize(
    ("base", "own", "message"),
    [
        ("afl:unlimited", 1.5, "weight = 1.5 of device [0-9], must be 0 to 1"),
        ("afl:unlimited", float("nan"), "weight = nan of device [0-9], must be 0 to 1"),
        ("mads", 0.5, "scheme own: entries = [0-9]+, must be 0 or all if the server mixes models"),
    ],
)
def test_what_cannot_be_mixed_is_refused(base: str, own: float, message: str, small: Scenario) -> None:
    method = make_method(compose("own", base, OwnMix(own=own)), small)
    with pytest.raises(InvariantError, match=message):
        Simulation(draw_world(small, 0), method, Notes()).run()


def test_models_are_not_relayed_as_updates(small: Scenario) -> None:
    with pytest.raises(ScenarioError, match="its server mixes models; relays can only carry updates"):
        make_method(compose("own", "fedmobile", Mix()), small)
