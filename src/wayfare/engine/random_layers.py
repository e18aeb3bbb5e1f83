"""Check that an engine can train a network with random layers, such as dropout."""

from __future__ import annotations

from wayfare.engine.base import LocalTraining
from wayfare.engine.first_step import first_loss
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.chance import RandomLayers, random_layers
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9

# PyTorch's default generator is set before every step of a device. A stack steps several devices at once, and captured
# graphs on several streams share one generator.
KEYING_ENGINES = ("reference",)

_NEVER_DRAW = Mlp, SmallCnn, Resnet9, LaneGcn


def task_random_layers(training: LocalTraining) -> RandomLayers:
    """The random layers of a task's network, found on the first minibatch of the first device."""
    task, where = training.task, training.compute.device
    if isinstance(task.model, _NEVER_DRAW):
        return RandomLayers()
    module = task.model.module().to(where).train()
    return random_layers(module, lambda network: first_loss(training, network), where)


def reject_random_layers(engine: str, training: LocalTraining) -> None:
    """Raise an error that names the layers whose draws an engine cannot key by device and round."""
    found = task_random_layers(training)
    if found.others:
        raise InputError(
            f"{training.task.name}: {_named(found.others)} draws random numbers without PyTorch's default "
            "generator or keeps state outside its buffers, so runs are not reproducible; use torch.rand, torch.randn "
            "or a layer of PyTorch such as nn.Dropout"
        )
    if found.keyed and engine not in KEYING_ENGINES:
        rule = (
            f"{_named(found.keyed)} of {training.task.name} draws random numbers, which this engine "
            f"cannot key by device and round; use {' or '.join(KEYING_ENGINES)}"
        )
        raise ScenarioError("engine", engine, rule)


def _named(layers: tuple[str, ...]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} (and {len(layers) - 1} more)"
