"""The server's optimiser: its steps, its place in a run, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_checkpoint import assert_same, taken_up, undisturbed
from tests.simulator.test_relays import steps
from tests.simulator.test_simulator import Notes, simulate
from wayfare import server as servers
from wayfare.errors import InputError, InvariantError, ScenarioError
from wayfare.learning.evaluate import Evaluator
from wayfare.methods import Arrival, ServerTerms, make_method
from wayfare.methods.servers import Optimise, mean_update
from wayfare.methods.states import vectors_of
from wayfare.records.checkpoints import read_checkpoint
from wayfare.scenario import Scenario
from wayfare.scenario.server import Server
from wayfare.server import ServerState, begin_server
from wayfare.simulator import Checks, Simulation
from wayfare.simulator.server_side import ServerSide
from wayfare.sparsify import Sparse, top_k
from wayfare.studies.study import load_study
from wayfare.world import draw_world

OPTIMISERS = [
    Server(optimizer="sgd", step=0.5),
    Server(optimizer="momentum"),
    Server(optimizer="momentum", momentum=0.0, step=2.0),
    Server(optimizer="adam", average_rounds=20),
]


def named(server: Server) -> str:
    return f"{server.optimizer}-{server.step}"


def with_server(scenario: Scenario, server: Server) -> Scenario:
    return scenario.model_copy(update={"server": server})


def begun(model: torch.Tensor, devices: int, server: Server, statistics: int = 0) -> tuple[ServerState, ServerTerms]:
    terms = ServerTerms(devices=devices, statistics=statistics)
    return begin_server(model, Optimise(server), terms, averages=server.average_rounds > 0), terms


def optimise(state: ServerState, update: torch.Tensor, server: Server, terms: ServerTerms) -> ServerState:
    """A step along a mean update: one device that brings all of it, times the fleet."""
    sent = Sparse(torch.arange(len(update)), terms.devices * update)
    return servers.aggregate(state, Optimise(server), [Arrival(device=0, sent=sent)], terms)


def updates(rounds: int, entries: int) -> torch.Tensor:
    return torch.randn(rounds, entries, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("server", OPTIMISERS[:3], ids=named)
def test_momentum_takes_the_steps_of_pytorch(server: Server) -> None:
    weight = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
    momentum = server.momentum if server.optimizer == "momentum" else 0.0
    truth = torch.optim.SGD([weight], lr=server.step_size, momentum=momentum)
    state, terms = begun(torch.ones(7, dtype=torch.float64), 4, server)
    for update in updates(6, 7):
        weight.grad = update.clone()
        truth.step()
        state = optimise(state, update, server, terms)
        torch.testing.assert_close(state.model, weight.detach(), rtol=1e-13, atol=1e-13)


def test_adam_takes_the_steps_of_its_formula_entry_by_entry() -> None:
    server = Server(optimizer="adam", step=0.2, momentum=0.8, second_moment=0.95, epsilon=0.01)
    state, terms = begun(torch.zeros(5, dtype=torch.float64), 4, server)
    model, mean, square = [0.0] * 5, [0.0] * 5, [1e-4] * 5
    for update in updates(6, 5):
        state = optimise(state, update, server, terms)
        for entry, value in enumerate(update.tolist()):
            mean[entry] = 0.8 * mean[entry] + 0.2 * value
            square[entry] = 0.95 * square[entry] + 0.05 * value**2
            model[entry] -= 0.2 * mean[entry] / (square[entry] ** 0.5 + 0.01)
        assert state.model.tolist() == pytest.approx(model, rel=1e-12, abs=1e-13)


def test_adam_in_equal_directions_is_the_adam_of_pytorch_without_its_correction() -> None:
    """With a gradient that never changes both moments settle, and every step is as long as PyTorch's."""
    server = Server(optimizer="adam", step=0.01, epsilon=1e-8)
    state, terms = begun(torch.zeros(3, dtype=torch.float64), 1, server)
    update = torch.tensor([1.0, -20.0, 0.3], dtype=torch.float64)
    for _ in range(2000):
        before, state = state.model, optimise(state, update, server, terms)
    torch.testing.assert_close(before - state.model, 0.01 * update.sign(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("server", OPTIMISERS, ids=named)
def test_statistics_are_averaged_whatever_the_optimiser(server: Server) -> None:
    state, terms = begun(torch.zeros(6), 2, server, statistics=2)
    total = torch.zeros(6)
    for number in range(3):
        uploads = [
            Sparse(torch.tensor([1, 4, 5]), torch.tensor([1.0, 2.0, -3.0]) + number),
            Sparse(torch.arange(6), torch.full((6,), 0.5)),
        ]
        arrivals = [Arrival(device=device, sent=sent) for device, sent in enumerate(uploads)]
        total += mean_update(state.model, arrivals, terms)
        state = servers.aggregate(state, Optimise(server), arrivals, terms)
    assert torch.allclose(state.model[4:], -total[4:])
    assert not torch.allclose(state.model[:4], -total[:4])
    assert all(len(moment) == 4 for _, moment in vectors_of(state.rule_state))


def test_a_mean_is_over_the_fleet_and_of_what_arrived() -> None:
    state, terms = begun(torch.zeros(4), 5, Server())
    assert servers.aggregate(state, Optimise(Server()), [], terms) is state
    arrival = Arrival(device=2, sent=top_k(torch.tensor([5.0, 0, -10.0, 1.0]), 2))
    assert mean_update(state.model, [arrival], terms).tolist() == [1.0, 0.0, -2.0, 0.0]
    assert state.model.tolist() == [0.0] * 4


def test_the_papers_server_is_untouched_by_the_section(small: Scenario) -> None:
    plain, written = (
        simulate(draw_world(scenario, 0), "mads")[0].model for scenario in (small, with_server(small, Server(step=1.0)))
    )
    assert torch.equal(plain, written)


def test_a_run_is_the_loop_written_by_hand(small: Scenario) -> None:
    """Dense uploads without a limit of energy: x = g, so all that is left is the server."""
    server = Server(optimizer="momentum", step=0.4, momentum=0.7)
    scenario = with_server(small.model_copy(update={"rounds": 25}), server)
    world = draw_world(scenario, 0)
    found, notes = simulate(world, "afl:unlimited", engine="reference")
    completed = {(event.round, event.device) for event in notes.contacts if event.completed}
    model, velocity, received = world.initial_model, torch.zeros_like(world.initial_model), dict[int, torch.Tensor]()
    for round_ in range(1, 26):
        met = [device for device in range(6) if (round_, device) in completed]
        if not met:
            continue
        mean = torch.zeros_like(model)
        for device in met:
            start, since = received.get(device, (world.initial_model, 0))
            mean += (start - steps(world, device, start, since + 1, round_)) / 6
        velocity = 0.7 * velocity + mean
        model = model - 0.4 * velocity
        received |= dict.fromkeys(met, (model, round_))
    assert len(received) > 3
    torch.testing.assert_close(found.model, model, rtol=0, atol=1e-6)


def test_the_judged_model_is_a_mean_over_rounds_and_devices_train_from_the_other(small: Scenario) -> None:
    world = draw_world(with_server(small, Server(average_rounds=15)), 0)
    models: list[torch.Tensor] = []

    class Watching(Notes):
        def on_round(self, round_: int) -> None:
            models.append(simulation.state().server.model)

    notes = Watching()
    simulation = Simulation(world, make_method("mads", world.scenario), notes)
    outcome = simulation.run()
    # The world's other run, without a mean, has the same global models.
    plain, other = simulate(draw_world(small, 0), "mads")
    assert torch.equal(models[-1], plain.model)
    assert notes.contacts == other.contacts
    mean = torch.zeros_like(plain.model, dtype=torch.float64)
    for round_, model in enumerate(models, start=1):
        mean += (model.double() - mean) / min(round_, 15)
    torch.testing.assert_close(outcome.model, mean.float(), rtol=1e-4, atol=1e-6)
    assert notes.evaluations[0] == other.evaluations[0]
    assert notes.evaluations[-1].score == Evaluator(world.task)(outcome.model).score
    assert notes.evaluations[-1].loss != other.evaluations[-1].loss


def test_the_first_rounds_are_a_plain_mean() -> None:
    server = Server(average_rounds=100)
    state, _ = begun(torch.zeros(1), 1, server)
    for round_, value in enumerate([6.0, 0.0, 3.0], start=1):
        state = servers.average(replace(state, model=torch.tensor([value])), round_, server.average_rounds)
    assert state.judged.tolist() == pytest.approx([3.0])


@pytest.mark.parametrize("server", OPTIMISERS, ids=named)
@pytest.mark.parametrize("name", ["mads", "fedmobile:unlimited"])
def test_paranoia_balances_what_the_optimiser_was_given(name: str, server: Server, small: Scenario) -> None:
    scenario = with_server(small, server)
    for local_loss in ("logit-adjusted", "prox"):
        learning = scenario.learning.model_copy(update={"local_loss": local_loss})
        world = draw_world(scenario.model_copy(update={"learning": learning}), 0)
        Simulation(world, make_method(name, scenario), Notes(), checks=Checks(paranoid=True)).run()


def test_paranoia_finds_an_update_that_the_optimiser_was_given_twice(
    small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive, calls = ServerSide.arrive, [0]

    def twice(self: ServerSide, arrival: Arrival) -> None:
        calls[0] += 1
        for _ in range(2 if calls[0] == 5 else 1):
            arrive(self, arrival)

    monkeypatch.setattr(ServerSide, "arrive", twice)
    world = draw_world(with_server(small, OPTIMISERS[1]), 0)
    with pytest.raises(InvariantError, match="lost or counted twice"):
        Simulation(world, make_method("mads", world.scenario), Notes(), checks=Checks(paranoid=True)).run()


@pytest.mark.parametrize("server", OPTIMISERS, ids=named)
@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_a_run_goes_on_to_the_same_bits(engine: str, server: Server, tmp_path: Path) -> None:
    for local_loss in ("logit-adjusted", "prox") if engine == "stacked" else ("logit-adjusted",):
        scenario = wayfare.load("fashion-small", [*SMALL, f"learning.local_loss={local_loss}"])
        world = draw_world(with_server(scenario, server), 1)
        expected = undisturbed(world, "mads", tmp_path, (1, 33), engine)
        for saved in expected[1].saved:
            found = taken_up(world, "mads", read_checkpoint(tmp_path, saved), engine, checks=Checks(paranoid=True))
            assert_same(found, expected, saved.round)


def test_the_state_of_another_optimiser_is_refused(small: Scenario, tmp_path: Path) -> None:
    _, notes = undisturbed(draw_world(with_server(small, OPTIMISERS[1]), 1), "mads", tmp_path, (30,), "stacked")
    state = read_checkpoint(tmp_path, notes.saved[0])
    with pytest.raises(ValueError, match="from a server without model averaging"):
        taken_up(
            draw_world(with_server(small, Server(optimizer="momentum", average_rounds=5)), 1), "mads", state, "stacked"
        )
    for other in (Server(), OPTIMISERS[3]):
        with pytest.raises(ValueError, match="the state is from another server rule"):
            taken_up(draw_world(with_server(small, other), 1), "mads", state, "stacked")


@pytest.mark.parametrize("server", OPTIMISERS, ids=named)
def test_models_that_are_mixed_are_not_optimised(server: Server, small: Scenario, tmp_path: Path) -> None:
    scenario = with_server(small, server)
    field = "step" if server.optimizer == "sgd" else "optimizer"
    with pytest.raises(ScenarioError, match=rf"server.{field} = .*: fedasync mixes models and has no updates"):
        wayfare.compare(scenario, ["mads", "fedasync"], seeds=1, out=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ScenarioError, match="fedasync mixes models"):
        wayfare.run(scenario, "fedasync", out=tmp_path)


def test_a_study_says_so_before_its_first_run(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'scenario = "fashion-small"\nschemes = ["fedasync"]\nseeds = 1\n[grid]\n"server.optimizer" = ["sgd", "adam"]\n'
    )
    with pytest.raises(ScenarioError, match=r"server.optimizer = 'adam': fedasync mixes models"):
        load_study(study)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("server.optimizer=lion", "server.optimizer = 'lion': input should be 'sgd', 'momentum' or 'adam'"),
        ("server.step=0", 'server.step = 0: must be a number of at least 1e-09 and at most 1e.15, or "auto"'),
        ("server.step=large", "server.step = 'large': must be a number"),
        ("server.momentum=1.0", "server.momentum = 1.0: input should be less than 1"),
        ("server.second_moment=-0.1", "server.second_moment = -0.1: input should be greater than or equal to 0"),
        ("server.epsilon=0.0", "server.epsilon = 0.0: input should be greater than 0"),
        ("server.average_rounds=-1", "server.average_rounds = -1: input should be greater than or equal to 0"),
        ("server.speed=1", "server.speed = 1: unknown key; known keys: optimizer, step"),
    ],
)
def test_what_is_set_is_checked(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wayfare.load("fashion-small", [override])
