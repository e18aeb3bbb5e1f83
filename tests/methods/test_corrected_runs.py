"""SCAFFOLD and FedDyn in whole runs, against loops that are written as the papers have them.

Devices come and go as in the world; gradients are those of the task, by autograd.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.simulator.golden_cases import BASE
from tests.simulator.goldens import Records
from torch import Tensor

import wayfare
from wayfare.learning.models.base import load_vector
from wayfare.methods import make_method
from wayfare.simulator import Outcome, Simulation
from wayfare.world import World, draw_world

# Nearly every contact is long enough for a whole model, and energy does not matter.
CHANGES = ("rounds=30", "radio.bandwidth_hz=3000")


@cache
def world() -> World:
    return draw_world(wayfare.load("fashion-small", [*BASE, *CHANGES]), 0)


def run(name: str, engine: str) -> tuple[Outcome, dict[int, list[int]]]:
    """How a run ends, and which devices delivered in each round."""
    records = Records()
    outcome = Simulation(world(), make_method(name, world().scenario), records, engine=engine).run()
    delivered: dict[int, list[int]] = {}
    columns = (records.column("contacts", name) for name in ("round", "device", "completed"))
    for round_, device, completed in zip(*columns, strict=True):
        if completed:
            delivered.setdefault(round_, []).append(device)
    return outcome, delivered


def gradient(device: int, round_: int, model: Tensor) -> Tensor:
    """Of the task's loss on the device's minibatch of a round."""
    task, module = world().task, world().task.model.module()
    load_vector(module, model)
    samples = torch.from_numpy(world().batches.of(device, round_, 1)[0])
    loss = task.loss(module, samples)
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_a_run_of_scaffold_is_that_of_the_paper(engine: str) -> None:
    outcome, delivered = run("scaffold:unlimited", engine)
    fleet, rate = range(world().scenario.fleet.devices), world().scenario.learning.learning_rate
    x = world().initial_model
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in fleet]
    downloaded = [(x, c, 0) for _ in fleet]  # the model, the variate and the round of the last download
    y = [x for _ in fleet]
    for round_ in range(1, world().scenario.rounds + 1):
        for n in fleet:
            y[n] = y[n] - rate * (gradient(n, round_, y[n]) - own[n] + downloaded[n][1])
        step, change = torch.zeros_like(x), torch.zeros_like(c)
        for n in delivered.get(round_, []):
            x_n, c_n, since = downloaded[n]
            fresh = own[n] - c_n + (x_n - y[n]) / (rate * (round_ - since))
            step, change = step + (y[n] - x_n) / len(fleet), change + (fresh - own[n]) / len(fleet)
            own[n] = fresh
        x, c = x + step, c + change
        for n in delivered.get(round_, []):
            downloaded[n], y[n] = (x, c, round_), x
    torch.testing.assert_close(outcome.model, x, rtol=1e-3, atol=1e-5)
    assert len(delivered) > 10
    assert not torch.equal(outcome.model, run("afl:unlimited", engine)[0].model)


@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_a_run_of_feddyn_is_that_of_the_paper(engine: str) -> None:
    outcome, delivered = run("feddyn:unlimited", engine)
    fleet, rate, alpha = range(world().scenario.fleet.devices), world().scenario.learning.learning_rate, 0.1
    theta = world().initial_model
    h, own = torch.zeros_like(theta), [torch.zeros_like(theta) for _ in fleet]
    local, received = [theta for _ in fleet], [theta for _ in fleet]
    for round_ in range(1, world().scenario.rounds + 1):
        for n in fleet:
            pull = alpha * (local[n] - received[n])
            local[n] = local[n] - rate * (gradient(n, round_, local[n]) - own[n] + pull)
        came = delivered.get(round_, [])
        moves = {n: local[n] - received[n] for n in came}
        for n in came:
            own[n] = own[n] - alpha * moves[n]
            h = h - alpha * moves[n] / len(fleet)
        # The N-th part of a step with full participation, theta + mean of moves - h / alpha, for each device that came.
        theta = theta + sum(moves[n] - h / alpha for n in came) / len(fleet) if came else theta
        for n in came:
            local[n] = received[n] = theta
    torch.testing.assert_close(outcome.model, theta, rtol=1e-3, atol=1e-5)
    assert not torch.equal(outcome.model, run("afl:unlimited", engine)[0].model)
