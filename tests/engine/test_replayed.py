"""Captured steps of users' own networks: on a GPU, and without one as far as memory and order go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.backbones import small_task, tuned
from tests.engine.jobs import Job, run, starts, visited
from tests.engine.slots import without_a_gpu
from tests.engine.test_own_networks import DEVICES, NETWORKS, RAGGED, WORDS, own_job
from torch import Tensor

from wayfare.engine import AHEAD_STEPS, Burst, Compute, make_engine
from wayfare.engine.base import Engine, LocalTraining
from wayfare.engine.traced.engine import StackedTraced
from wayfare.engine.traced.replayed import Replayed
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.schedule import Schedule

DESCENTS = [Descent(), Descent(pull=0.3, corrected=True), Descent(momentum=0.9, weight_decay=0.01, steps_per_round=2)]
# Rounds and the devices in contact.
PLAN = {3: [0], 4: [1, 2], 5: [0], 8: [3, 4], 9: [2]}
# Networks whose draws a GPU cannot key are not stacked there, and perceptrons have their own stack.
CAPTURED = ["convolutional", "gru", "lstm", "two-way gru", "rnn", "transformer", "tied"]


def trained(engine: Engine, training: LocalTraining, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Models and velocities after ragged bursts, two calls of the engine."""
    anchors = initial.roll(1, dims=1)[:, : training.task.model.parameters].contiguous()
    models, velocities = initial.clone(), 0.1 * anchors
    for later in (0, 3):
        bursts = [
            Burst(
                *(burst.device, burst.first_round + later, burst.rounds),
                received=anchors[burst.device],
                correction=0.1 * anchors[burst.device] if training.descent.corrected else None,
                velocity=velocities[burst.device],
            )
            for burst in RAGGED
        ]
        engine.run(list(models.unbind()), bursts)
    return models, velocities


@pytest.mark.parametrize("descent", DESCENTS, ids=["plain", "pulled", "momentum"])
def test_replays_from_one_memory_give_the_models_of_the_stack(
    descent: Descent, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = own_job(NETWORKS["convolutional"])
    training = replace(
        local.training,
        descent=descent,
        schedule=Schedule("linear", 12),
        local_loss=LocalLoss(offsets=torch.randn(DEVICES, 4)),
    )
    initial = starts(local, torch.float64)
    expected = trained(StackedTraced(training), training, initial)
    without_a_gpu(monkeypatch)
    for found, truth in zip(trained(Replayed(training), training, initial), expected, strict=True):
        assert torch.equal(found, truth)


def test_replays_of_a_backbone_give_the_models_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tuned("norms")
    held = [np.arange(device, 30, DEVICES) for device in range(DEVICES)]
    training = LocalTraining(
        task=small_task(model), batches=Batches(held, 4, 20, seed=0), learning_rate=0.1, descent=Descent(momentum=0.9)
    )
    initial = torch.stack([model.initial(np.random.default_rng(device)) for device in range(DEVICES)]).double()
    expected = trained(StackedTraced(training), training, initial)
    without_a_gpu(monkeypatch)
    for found, truth in zip(trained(Replayed(training), training, initial), expected, strict=True):
        assert torch.equal(found, truth)


def test_devices_with_a_backbone_run_few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    held = [np.arange(30)]
    backbone = LocalTraining(
        task=small_task(tuned("adapters")), batches=Batches(held, 4, 10, seed=0), learning_rate=0.1
    )
    assert Replayed(backbone).ahead_steps < Replayed(own_job(NETWORKS["gru"]).training).ahead_steps == AHEAD_STEPS


def test_a_burst_ends_before_longer_ones_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    local = own_job(NETWORKS["convolutional"])
    engine, models = Replayed(local.training), list(starts(local, torch.float64).unbind())
    happened: list[object] = []
    take_step = Replayed._take_step
    monkeypatch.setattr(Replayed, "_take_step", lambda self, *given: (happened.append("step"), take_step(self, *given)))
    monkeypatch.setattr(torch.cuda, "Event", lambda: Noted(happened, models))
    ends = engine.launch(models, RAGGED, [None] * len(RAGGED))
    # Bursts have 3, 1, 0, 2 and 3 rounds.
    order = [each if each == "step" else ends.index(each) for each in happened if each == "step" or each in ends]  # type: ignore[arg-type]
    assert order == ["step", 1, "step", 3, "step", 0, 4]
    for device, end in enumerate(ends):
        assert isinstance(end, Noted)
        assert end.seen is None or torch.equal(end.seen[device], models[device])


@dataclass(eq=False)
class Noted:
    """An event that remembers when it was recorded, and the models at that time."""

    happened: list[object]
    models: list[Tensor]
    seen: list[Tensor] | None = None

    def record(self) -> None:
        self.happened.append(self)
        self.seen = [model.clone() for model in self.models]

    def wait(self) -> None: ...


@pytest.mark.parametrize("ahead_steps", [1, AHEAD_STEPS])
def test_contacts_beside_captured_steps_read_models_that_are_finished(
    ahead_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = own_job(NETWORKS["convolutional"])
    initial = starts(local, torch.float64)[0]
    expected = visited(make_engine("reference", local.training), initial, PLAN, DEVICES)
    without_a_gpu(monkeypatch)
    engine = Replayed(local.training)
    engine.ahead_steps = ahead_steps
    found = visited(engine, initial, PLAN, DEVICES)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("ahead_steps", [1, AHEAD_STEPS])
def test_a_gpu_steps_beside_contacts_that_read_finished_models(ahead_steps: int) -> None:
    local = on_gpu("convolutional")
    initial = starts(local, torch.float64)[0]
    expected = visited(make_engine("reference", local.training), initial, PLAN, DEVICES)
    engine = make_engine("auto", local.training)
    assert isinstance(engine, Replayed)
    engine.ahead_steps = ahead_steps
    for _ in range(3):
        found = visited(engine, initial, PLAN, DEVICES)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def on_gpu(name: str) -> Job:
    local = own_job(NETWORKS[name], words=name in WORDS)
    return Job(replace(local.training, compute=Compute.named("cuda")), DEVICES)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_a_gpu_replays_an_own_network_and_gives_the_updates_of_the_reference(name: str) -> None:
    local = on_gpu(name)
    initial = starts(local, torch.float64)
    engine = make_engine("auto", local.training)
    assert isinstance(engine, Replayed)
    expected, _ = trained(make_engine("reference", local.training), local.training, initial)
    found, _ = trained(engine, local.training, initial)
    again, _ = trained(engine, local.training, initial)
    assert engine.captures
    assert torch.equal(found, again)
    updates = (expected - initial).norm(dim=1).clamp(min=1e-12)
    assert float(((found - expected).norm(dim=1) / updates).max()) <= 1e-9


@pytest.mark.gpu
def test_replays_of_one_device_and_of_several_agree_up_to_rounding() -> None:
    local = on_gpu("gru")
    initial = starts(local, torch.float32)
    together, alone = run("auto", local, initial, RAGGED), initial.clone()
    engine = make_engine("auto", local.training)
    for burst in RAGGED:
        engine.run([alone[burst.device]], [burst])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
