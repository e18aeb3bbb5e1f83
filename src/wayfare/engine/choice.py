"""Which engine trains: by name, or the fastest that is correct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from wayfare.engine.base import Engine, LocalTraining
from wayfare.engine.batched.support import obstacle
from wayfare.engine.collecting import collecting
from wayfare.engine.cuda_graphs import CudaGraphs
from wayfare.engine.first_step import reject_failing_step
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.random_layers import reject_random_layers, task_random_layers
from wayfare.engine.reference import Reference
from wayfare.engine.stacked_cnn import StackedCnn
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.traced.engine import StackedTraced
from wayfare.engine.traced.probing import NotStackableError
from wayfare.engine.traced.verified import stacked_own
from wayfare.engine.vmapped import Vmapped
from wayfare.errors import ScenarioError
from wayfare.learning.models.wrapped import Wrapped
from wayfare.learning.sums import SumsModel, with_model
from wayfare.learning.tasks.base import Labelled
from wayfare.learning.tasks.own import OwnTask
from wayfare.learning.tasks.tuned import TunedClassification

_BUILT_IN = StackedMlp, StackedCnn, StackedLaneGcn


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, the name under which it can be chosen again, and why a traced network is not stacked, if so."""

    name: str
    engine: Engine
    reason: str | None = None


def choose_engine(name: str, training: LocalTraining) -> Choice:
    """Create an engine by name; `auto` is the fastest that fits the network and the machine.

    Networks with random layers that the engine cannot key by device and round raise ScenarioError.
    """
    if name not in ("auto", *ENGINES):
        raise ScenarioError("engine", name, f"must be one of auto, {', '.join(ENGINES)}")
    if isinstance(training.task.model, Wrapped):
        reject_failing_step(training)
    if isinstance(training.task.model, SumsModel):
        after = _after_sums(training)
        if after is None:
            return Choice("reference" if name == "auto" else name, collecting(training, None))
        chosen = choose_engine(name, after)
        return replace(chosen, engine=collecting(training, chosen.engine))
    if name == "auto" and _is_traced(training):
        return _for_traced_network(training)
    chosen_name = _fastest(training) if name == "auto" else name
    return Choice(chosen_name, ENGINES[chosen_name](training))


def _batched(training: LocalTraining) -> Engine:
    reason = obstacle(training)
    if reason is not None:
        raise ScenarioError("engine", "batched", f"does not work here: {reason}")
    # Triton takes a second to import and is not installed everywhere.
    from wayfare.engine.batched.engine import Batched

    return Batched(training)


def _is_traced(training: LocalTraining) -> bool:
    """Whether to try a stack of traced operations: of a user's own network, or on a GPU of a part of a backbone.

    On a CPU a plain loop over devices is faster for a backbone (docs/how-to/pretrained.md).
    """
    on_gpu = training.compute.device.type == "cuda"
    return isinstance(training.task.model, Wrapped) or (on_gpu and isinstance(training.task, TunedClassification))


def _for_traced_network(training: LocalTraining) -> Choice:
    """Stacks if a step agrees with `reference`; otherwise graphs on a GPU if they agree, or plain PyTorch.

    `vmap` is not tried: a perceptron took 8.8 s with it and 5.0 s with plain PyTorch, on a CPU.
    """
    # Layers that no engine can key are rejected first.
    reject_random_layers("reference", training)
    try:
        engine = stacked_own(training)
        if isinstance(engine, StackedTraced) and engine.slower is not None:
            raise NotStackableError(engine.slower, traced=True)
        return Choice("stacked", engine)
    except NotStackableError as error:
        reason, traced = f"the network of {training.task.name} cannot be stacked: {error}", error.traced
    # Traced operations read no values, so a graph can hold them, if the loss reads none either.
    known = isinstance(training.task, TunedClassification) or (
        traced and isinstance(training.task, OwnTask) and training.task.averages
    )
    if known and training.compute.device.type == "cuda" and not task_random_layers(training).keyed:
        return Choice("cuda_graphs", CudaGraphs(training), reason)
    return Choice("reference", Reference(training), reason)


def _stacked(training: LocalTraining) -> Engine:
    """The stack for a task: batched products, grouped convolutions, batched graphs, traced operations, or `vmap`."""
    for engine in _BUILT_IN:
        if engine.fits(training.task):
            return engine(training)
    if isinstance(training.task.model, Wrapped) or isinstance(training.task, TunedClassification):
        reject_random_layers("reference", training)
        try:
            return stacked_own(training)
        except NotStackableError:
            pass
    reject_random_layers("stacked", training)
    return Vmapped(training)


def _checked(name: str, engine: Callable[[LocalTraining], Engine]) -> Callable[[LocalTraining], Engine]:
    def make(training: LocalTraining) -> Engine:
        reject_random_layers(name, training)
        return engine(training)

    return make


ENGINES: Mapping[str, Callable[[LocalTraining], Engine]] = {
    "reference": _checked("reference", Reference),
    "stacked": _stacked,
    "vmap": _checked("vmap", Vmapped),
    "cuda_graphs": _checked("cuda_graphs", CudaGraphs),
    "batched": _batched,
}


def make_engine(name: str, training: LocalTraining) -> Engine:
    return choose_engine(name, training).engine


def _after_sums(training: LocalTraining) -> LocalTraining | None:
    """The training of the entries after class statistics, if devices train."""
    task = training.task
    if not isinstance(task.model, SumsModel) or task.model.trained is None:
        return None
    return replace(training, task=with_model(task, task.model.trained))


def _fastest(training: LocalTraining) -> str:
    """Graphs on a GPU and stacks on a CPU, for tasks that allow them; plain PyTorch for all others.

    ResNet-9 in few bits has its own kernels, on a GPU that can run them. Scenes of LaneGCN differ in size, which a
    captured graph does not allow, so they are stacked on a GPU too.
    """
    task = training.task
    if StackedLaneGcn.fits(task):
        return "stacked"
    if training.compute.device.type == "cuda":
        if obstacle(training) is None:
            return "batched"
        allowed = isinstance(task, Labelled) and not task_random_layers(training).keyed
        return "cuda_graphs" if allowed else "reference"
    return "stacked" if StackedMlp.fits(task) or StackedCnn.fits(task) else "reference"
