"""Devices that count by their number of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_simulator import Notes, simulate
from wayfare.errors import InvariantError, ScenarioError
from wayfare.learning.tasks import Task
from wayfare.methods import ServerTerms, make_method
from wayfare.methods.servers import Add, Optimise
from wayfare.scenario import Scenario
from wayfare.scenario.server import Server
from wayfare.server import Senders, aggregate, begin_server
from wayfare.simulator import Checks, Simulation
from wayfare.simulator.ledger import Ledger
from wayfare.sparsify import Sparse
from wayfare.world import draw_world

# 13 devices on 10 classes of equal size: most hold a class alone, three classes are held by two.
UNEQUAL = (*SMALL, "fleet.devices=13", "learning.partition.kind=by-group", "server.weighting=samples")


@pytest.fixture(scope="module")
def unequal() -> Scenario:
    return wayfare.load("fashion-small", UNEQUAL)


@pytest.mark.parametrize("rule", [Add(), Optimise(Server(optimizer="adam", weighting="samples"))], ids=["add", "adam"])
def test_a_round_adds_the_dense_mean_over_samples(rule: Add | Optimise) -> None:
    samples, entries = (3, 1, 12), 5
    updates = torch.randn(3, entries, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    senders = Senders(samples=samples, learning_rate=0.1, weights=(9 / 16, 3 / 16, 36 / 16))
    arrivals = [
        senders.arrival(device, Sparse(torch.arange(entries), update), round_=1, staleness_rounds=1)
        for device, update in enumerate(updates)
    ]
    # What one device would send that held all the data.
    dense = sum(count * update for count, update in zip(samples, updates, strict=True)) / sum(samples)
    alone = Senders(samples=(16,), learning_rate=0.1)
    whole = alone.arrival(0, Sparse(torch.arange(entries), torch.as_tensor(dense)), round_=1, staleness_rounds=1)
    found, expected = (
        aggregate(
            begin_server(torch.ones(entries, dtype=torch.float64), rule, terms, averages=False), rule, some, terms
        )
        for some, terms in ((arrivals, ServerTerms(devices=3)), ([whole], ServerTerms(devices=1)))
    )
    torch.testing.assert_close(found.model, expected.model, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("scheme", ["mads", "fedbuff", "ca2fl", "afl:unlimited"])
def test_devices_with_equal_samples_weigh_as_before_to_the_bit(scheme: str, small: Scenario) -> None:
    weighted = wayfare.load("fashion-small", [*SMALL, "server.weighting=samples"])
    (one, _), (other, _) = (simulate(draw_world(each, 3), scheme) for each in (small, weighted))
    assert torch.equal(one.model, other.model)


@pytest.mark.parametrize("changes", [(), ("server.optimizer=momentum",)])
def test_paranoid_checks_balance_weighted_mass(
    changes: tuple[str, ...], unequal: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = wayfare.load("fashion-small", [*UNEQUAL, *changes])
    Simulation(draw_world(scenario, 0), make_method("mads", scenario), Notes(), checks=Checks(paranoid=True)).run()
    begin = Ledger.__init__

    def without_weights(self: Ledger, *arguments: object, weights: tuple[float, ...], **more: object) -> None:
        begin(self, *arguments, weights=(1.0,) * len(weights), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "__init__", without_weights)
    with pytest.raises(InvariantError, match="lost or counted twice"):
        Simulation(draw_world(scenario, 0), make_method("mads", scenario), Notes(), checks=Checks(paranoid=True)).run()


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("fedasync", "mixes models"),
        ("fedmobile", "relays sums of several devices' updates"),
        ("scaffold", "corrects gradients with equal weights"),
        ("feddyn", "corrects gradients with equal weights"),
    ],
)
def test_methods_whose_updates_have_no_such_weights_are_refused(scheme: str, why: str, unequal: Scenario) -> None:
    with pytest.raises(ScenarioError, match=rf"server\.weighting = 'samples': {scheme} .*{why}"):
        make_method(scheme, unequal)


def test_more_samples_pull_the_model_further(tmp_path: Path) -> None:
    """One round, two devices, dense uploads: the model moves by the mean over samples, computed here by hand."""
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((20, 3)).astype(np.float32), np.arange(20) % 2
    task: Task = wayfare.own_task(
        "two",
        train=(rows, labels),
        test=(rows, labels),
        network=torch.nn.Linear(3, 2),
        devices=[range(4), range(4, 20)],
    )
    contacts = tmp_path / "contacts.csv"
    contacts.write_text("start_s,end_s,a,b\n1,900,0,bus\n1,900,1,bus\n")
    scenario = wayfare.load(
        "fashion-small",
        [
            *("mobility.model=trace", f"mobility.file={contacts}", "mobility.server=bus", "round_s=899", "rounds=1"),
            *("fleet.devices=2", "learning.batch_size=4", "learning.partition.kind=own", "server.weighting=samples"),
        ],
    )
    world = draw_world(scenario, 0, task)
    simulation = Simulation(world, make_method("afl:unlimited", scenario), Notes(), engine="reference")
    outcome = simulation.run()
    first = world.initial_model
    moves = []
    for device in range(2):
        weight, bias = torch.nn.Parameter(first[:6].view(2, 3).clone()), torch.nn.Parameter(first[6:].clone())
        batch = torch.from_numpy(world.batches.of(device, 1, 1)[0])
        outputs = torch.nn.functional.linear(torch.from_numpy(rows)[batch], weight, bias)
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels)[batch]).backward()
        moves.append(scenario.learning.learning_rate * torch.cat([weight.grad.flatten(), bias.grad]))  # type: ignore[union-attr, list-item]
    torch.testing.assert_close(outcome.model, first - 0.2 * moves[0] - 0.8 * moves[1], rtol=1e-5, atol=1e-7)
