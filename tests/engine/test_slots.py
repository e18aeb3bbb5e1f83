"""The slots of the engine `cuda_graphs`, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.engine.jobs import MODELS, job, starts
from tests.engine.slots import run_in_slots, without_a_gpu

from wayfare.engine import Burst, cuda_graphs
from wayfare.engine.base import LocalTraining
from wayfare.learning.descent import Descent
from wayfare.learning.tasks.base import Task
from wayfare.sharing import shared, sharing

RAGGED = [Burst(device, 1 + device % 3, steps) for device, steps in enumerate([5, 1, 9, 0, 3, 9, 2, 7, 1])]


def test_slots_share_bursts_and_give_the_models_of_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    local = job(MODELS[0], schedule="cosine")
    initial = starts(local, torch.float32)
    one, three = initial.clone(), initial.clone()
    run_in_slots(local.training, list(one.unbind()), RAGGED, 1)
    engine = run_in_slots(local.training, list(three.unbind()), RAGGED, 3)
    assert torch.equal(one, three)
    assert torch.equal(three[3], initial[3])
    # The burst goes to the slot with the fewest steps left.
    assert [sum(steps for _, steps, _ in slot._launched) for slot in engine._slots] == [14, 13, 10]
    assert [slot.steps_left() for slot in engine._slots] == [0, 0, 0]


def test_runs_share_slots_as_long_as_one_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    training = job(MODELS[0]).training
    recipe = cuda_graphs.Recipe(slots=1, compiled=False, channels_last=True)

    def slots() -> list[cuda_graphs._Slot]:
        key = cuda_graphs._captured(training, training.task, recipe)
        return shared("slots", key, lambda: cuda_graphs._make_slots(training, training.task, recipe))

    with sharing():
        assert slots() is slots()


def test_runs_share_slots_only_if_their_graphs_are_the_same() -> None:
    local = job(MODELS[0]).training
    recipe = cuda_graphs.Recipe(slots=2, compiled=False, channels_last=True)

    def key(training: LocalTraining, task: Task | None = None) -> object:
        return cuda_graphs._captured(training, task or training.task, recipe)

    assert key(local) == key(replace(local, batches=job(MODELS[0]).training.batches))
    assert key(local) != key(replace(local, learning_rate=2 * local.learning_rate))
    assert key(local) != key(replace(local, descent=Descent(momentum=0.5)))
    assert key(local) != key(local, job(MODELS[1]).training.task)
