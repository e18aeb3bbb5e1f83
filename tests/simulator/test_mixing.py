"""FedAsync: the server mixes models instead of adding updates."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch

import wayfare
from tests.simulator.test_relays import steps
from tests.simulator.test_simulator import Notes, simulate
from wayfare import Encounter, Link, Upload
from wayfare.errors import InvariantError, ScenarioError
from wayfare.scenario import Scenario
from wayfare.methods import make_method
from wayfare.server import ServerState, mix
from wayfare.simulator import Checks, Simulation
from wayfare.world import draw_world


@pytest.mark.parametrize("name", ["fedasync", "fedasync:constant", "fedasync:hinge"])
def test_a_run_is_the_loop_that_its_authors_wrote(name: str, small: Scenario) -> None:
    scenario = small.model_copy(update={"rounds": 25})
    world = draw_world(scenario, 0)
    found, notes = simulate(world, f"{name}:unlimited", engine="reference")
    weight_of = make_method(name, scenario).mixing_weight
    model, received = world.initial_model, {}
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
            assert weight is not None
            model = (1 - weight) * model + weight * local
            met.append(device)
        for device in met:
            received[device] = (model, round_)
    assert len(received) > 3
    assert failures
    torch.testing.assert_close(found.model, model, rtol=0, atol=1e-6)


def test_models_of_one_round_are_mixed_one_after_the_other() -> None:
    state = ServerState(model=torch.zeros(3), devices=5)
    mixed = mix(state, [(torch.ones(3), 0.5), (torch.full((3,), 2.0), 0.25)])
    assert mixed.model.tolist() == [0.875] * 3
    assert state.model.tolist() == [0.0] * 3
    assert mix(state, []) is state


def test_a_paranoid_run_says_that_there_is_no_mass_to_balance(
    small: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    world = draw_world(small, 0)
    with caplog.at_level(logging.WARNING, "wayfare"):
        Simulation(world, make_method("fedasync", small), Notes(), checks=Checks(paranoid=True)).run()
    assert "fedasync mixes models at the server: mass is not conserved, and not balanced" in caplog.text


@dataclass
class Own(wayfare.Scheme):
    """Mixes what it should not."""

    name: str = "own"
    weight: float = 0.5
    whole: bool = True
    relays: bool = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        if self.whole:
            return wayfare.send_dense(encounter, link, link.max_power_watts)
        return wayfare.send_top_k(encounter, link, 0.1 * link.max_power_watts)

    def mixing_weight(self, staleness_rounds: int) -> float:
        return self.weight


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Own(weight=1.5), "scheme own: mixing_weight = 1.5, must be 0 to 1"),
        (Own(weight=float("nan")), "scheme own: mixing_weight = nan, must be 0 to 1"),
        (Own(whole=False), "must be 0 or all where models are mixed"),
    ],
)
def test_what_cannot_be_mixed_is_refused(scheme: Own, message: str, small: Scenario) -> None:
    with pytest.raises(InvariantError, match=message):
        Simulation(draw_world(small, 0), scheme, Notes()).run()


def test_models_are_not_relayed_as_updates(small: Scenario) -> None:
    with pytest.raises(ScenarioError, match="a scheme that mixes models cannot relay updates"):
        Simulation(draw_world(small, 0), Own(relays=True), Notes())
