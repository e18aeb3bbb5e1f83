"""Local training: engines that give equal results at different speeds.

Design decisions:

- Local training is lazy. Nothing observes a device between contacts, so its steps form a burst. At a contact the
  trainer runs the needed bursts and advances other pending bursts by up to a dozen steps, which makes wide stacks with
  little copying. Steps after a device's last contact are never run.
- A local loss belongs to the local steps. Engines take logit offsets per device from a table, and a burst carries its
  proximal anchor. Tasks know neither.
- Random layers are keyed through PyTorch's default generator: `reference` sets it from (seed, device, step) and
  restores it. Stacks and graphs share one generator among devices, so they reject such layers.
- One thread per process, parallel over runs: models are small, and sums do not depend on the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from wayfare.engine.base import Burst, Engine, LocalTraining
from wayfare.engine.collecting import Collecting
from wayfare.engine.compute import Compute, Precision
from wayfare.engine.cuda_graphs import CudaGraphs
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.random_layers import reject_random_layers, task_random_layers
from wayfare.engine.reference import Reference
from wayfare.engine.shelf import InMemory, OnDisk, Place, Shelf, open_shelf
from wayfare.engine.stacked_cnn import StackedCnn
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.trainer import AHEAD_STEPS, Policy, Trainer, TrainerState, Training
from wayfare.engine.vmapped import Vmapped
from wayfare.errors import ScenarioError
from wayfare.learning.sums import SumsModel, with_model
from wayfare.learning.tasks.base import Labelled

__all__ = [
    "AHEAD_STEPS",
    "ENGINES",
    "Burst",
    "Compute",
    "Engine",
    "InMemory",
    "LocalTraining",
    "OnDisk",
    "Place",
    "Policy",
    "Precision",
    "Shelf",
    "Trainer",
    "TrainerState",
    "Training",
    "engine_name",
    "make_engine",
    "open_shelf",
]


def _stacked(training: LocalTraining) -> Engine:
    """The stack for a task: batched products, grouped convolutions, batched graphs, or `vmap`."""
    for engine in (StackedMlp, StackedCnn, StackedLaneGcn):
        if engine.fits(training.task):
            return engine(training)
    return Vmapped(training)


ENGINES: Mapping[str, Callable[[LocalTraining], Engine]] = {
    "reference": Reference,
    "stacked": _stacked,
    "vmap": Vmapped,
    "cuda_graphs": CudaGraphs,
}


def make_engine(name: str, training: LocalTraining) -> Engine:
    """Create an engine by name; `auto` is the fastest that fits the model and the machine.

    Networks with random layers that the engine cannot key by device and round raise ScenarioError.
    """
    chosen = engine_name(name, training)
    if isinstance(training.task.model, SumsModel):
        after = _after_sums(training)
        return Collecting(training, None if after is None else make_engine(chosen, after))
    reject_random_layers(chosen, training)
    return ENGINES[chosen](training)


def _after_sums(training: LocalTraining) -> LocalTraining | None:
    """The training of the entries after class statistics, if devices train."""
    task = training.task
    if not isinstance(task.model, SumsModel) or task.model.head is None:
        return None
    return replace(training, task=with_model(task, task.model.head))


def engine_name(name: str, training: LocalTraining) -> str:
    """Check a name, and resolve `auto`."""
    if name == "auto":
        name = _fastest(training)
    if name not in ENGINES:
        raise ScenarioError("engine", name, f"must be one of auto, {', '.join(ENGINES)}")
    return name


def _fastest(training: LocalTraining) -> str:
    """Graphs on a GPU and stacks on a CPU, for tasks that allow them; plain PyTorch for all others.

    Scenes of LaneGCN differ in size, which a captured graph does not allow, so they are stacked on a GPU too. A user's
    own loss may read values while it is computed, which neither a graph nor `vmap` supports.
    """
    task = training.task
    if isinstance(task.model, SumsModel):
        after = _after_sums(training)
        return "reference" if after is None else _fastest(after)
    if StackedLaneGcn.fits(task):
        return "stacked"
    if training.compute.device.type == "cuda":
        allowed = isinstance(task, Labelled) and not task_random_layers(training).keyed
        return "cuda_graphs" if allowed else "reference"
    return "stacked" if StackedMlp.fits(task) or StackedCnn.fits(task) else "reference"
