"""A user's own perceptron, as the perceptron that `StackedMlp` trains without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from wayfare.arrays import Ints
from wayfare.engine.traced.nodes import RELUS, argument_of, is_unused_answer
from wayfare.engine.traced.probing import probes_of
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks.base import Evaluation, Metric
from wayfare.learning.tasks.own import OwnTask

_FLATTENS = "flatten", "view", "reshape", torch.flatten, torch.reshape


def perceptron_sizes(graph: fx.Graph, trained: Sequence[str]) -> tuple[int, ...] | None:
    """The sizes of the layers if a network is a perceptron with biases and ReLU, and its vector has their order."""
    signal: fx.Node | None = None
    sizes: list[int] = []
    used: list[str] = []
    has_relu = True
    for node in graph.nodes:
        match node.op:
            case "placeholder":
                signal = node
            case "get_attr":
                pass
            case "output":
                flat = signal is not None and node.args[0] is signal and not has_relu
                return tuple(sizes) if flat and used == list(trained) else None
            case _ if is_unused_answer(node):
                pass
            case _ if signal is None or node.args[0] is not signal:
                return None
            case _ if node.target is functional.linear and has_relu:
                weight, bias = argument_of(node, 1, "weight"), argument_of(node, 2, "bias")
                if bias is None or probes_of(node)[0].dim() != 2:
                    return None
                sizes += [*probes_of(weight)[0].shape[::-1]][1 if sizes else 0 :]
                used += [weight.target, bias.target]
                signal, has_relu = node, False
            case _ if node.target in RELUS and not has_relu:
                signal, has_relu = node, True
            case _ if node.target in _FLATTENS and not sizes and _flattens(signal, node):
                signal = node
            case _:
                return None
    return None


def _flattens(before: fx.Node, after: fx.Node) -> bool:
    """Whether an operation turns each sample into its entries, in their order."""
    samples, rows = probes_of(before)[0], probes_of(after)[0]
    return torch.equal(samples.reshape(len(samples), -1), rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerceptronTask:
    """A task whose network is a perceptron and whose loss is the mean cross-entropy."""

    task: OwnTask
    model: Mlp

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def classes(self) -> int:
        return self.task.classes

    @property
    def train_labels(self) -> Tensor:
        return self.task.train[1]

    def class_of_samples(self) -> Ints:
        return self.task.class_of_samples()

    def inputs(self, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        return self.task.minibatch(samples, torch.get_default_dtype())[0].flatten(1)

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        return self.task.loss(module, samples, crops)

    def evaluate(self, module: nn.Module) -> Evaluation:
        return self.task.evaluate(module)

    def to(self, device: torch.device) -> Self:
        return replace(self, task=self.task.to(device))


def perceptron_task(task: Any, sizes: tuple[int, ...] | None) -> PerceptronTask | None:
    """The task of a perceptron; None if the network or the loss is another."""
    if sizes is None or not isinstance(task, OwnTask) or task.loss_of is not functional.cross_entropy:
        return None
    labelled = task.averages and task.train[1].dim() == 1 and not task.train[1].is_floating_point()
    return PerceptronTask(task=task, model=Mlp(sizes)) if labelled else None
