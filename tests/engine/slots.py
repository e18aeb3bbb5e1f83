"""A slot of the engine `cuda_graphs` on a machine without a GPU: the work itself stands in for a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from wayfare.engine import Burst, LocalTraining, cuda_graphs
from wayfare.engine.base import minibatches, steering_of
from wayfare.engine.traced.replayed import Replayed
from wayfare.learning.local_loss import loss_of


class _Stream:
    """A stream on a machine without any: everything happens at once."""

    device = None

    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    """The end of work that happened at once."""

    def record(self) -> None: ...

    def wait(self) -> None: ...

    def query(self) -> bool:
        return True


@dataclass
class _Replayed:
    """What stands in for a captured graph: the work itself, done again."""

    replay: Callable[[], None]


def _held(engine: Replayed, memory: Any, count: int, real: torch.dtype) -> None:
    memory.graphs[count] = _Replayed(lambda: engine._take_step(memory, count, real))


def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slots work where there is no GPU."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda where: _Stream())
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: _Stream())
    monkeypatch.setattr(cuda_graphs._Slot, "_record", lambda slot, work: _Replayed(work))
    monkeypatch.setattr(Replayed, "_capture", _held)
    monkeypatch.setattr(torch, "compile", lambda work, dynamic: work)


def run_in_slots(
    training: LocalTraining, models: Sequence[torch.Tensor], bursts: Sequence[Burst], slots: int
) -> cuda_graphs.CudaGraphs:
    """Launch bursts on several slots; the engine is returned."""
    engine = object.__new__(cuda_graphs.CudaGraphs)
    recipe = cuda_graphs.Recipe(slots=slots, compiled=False, channels_last=True)
    engine._training, engine._slots = training, cuda_graphs._make_slots(training, training.task, recipe)
    engine.run(models, bursts)
    return engine


def run_in_a_slot(
    training: LocalTraining,
    initial: torch.Tensor,
    bursts: Sequence[Burst],
    monkeypatch: pytest.MonkeyPatch,
    *,
    compiled: bool = False,
) -> torch.Tensor:
    """The models after some bursts, one after another in one slot; what is recorded is replayed, from one memory."""
    without_a_gpu(monkeypatch)
    task, recipe = training.task, cuda_graphs.Recipe(slots=1, compiled=compiled, channels_last=True)
    where = training.compute.device
    network = cuda_graphs._network(task, where, recipe)
    loss = cuda_graphs._compiled_loss(task, network) if compiled else partial(loss_of, task)
    slot = cuda_graphs._Slot(training, cuda_graphs._network(task, where, recipe), loss)
    models = initial.clone()
    for burst in bursts:
        batches, vectors = minibatches(training, burst, pinned=True), steering_of(training, [burst])
        for _ in slot.run(models[burst.device], batches, vectors, None, torch.cuda.Event()):
            pass
    return models
