"""Sums as the parameters of a network, so that everything that handles a model handles them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.sums.classifiers import linear_classifier
from wayfare.learning.sums.layout import Sums
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.own import OwnTask


class _FromSums(nn.Module):
    """Classifies by sums, and by the trained change of the classifier that they give, if devices train on."""

    def __init__(self, layout: Sums, change: nn.Linear | None) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.zeros(layout.entries))
        self.change = change
        self._layout = layout

    def forward(self, inputs: Tensor) -> Tensor:
        weights, bias = linear_classifier(self.sums, self._layout)
        logits = nn.functional.linear(inputs, weights, bias)
        return logits if self.change is None else logits + self.change(inputs)


@dataclass(frozen=True, slots=True)
class SumsModel:
    """A vector of sums, and of the trained change after them if there is a ``head``."""

    layout: Sums
    head: Mlp | None = None
    statistics: int = 0

    @property
    def parameters(self) -> int:
        return self.layout.entries + (0 if self.head is None else self.head.parameters)

    def module(self) -> nn.Module:
        size = self.layout.features, self.layout.classes
        return _FromSums(self.layout, None if self.head is None else nn.Linear(*size))

    def initial(self, rng: np.random.Generator) -> Tensor:
        return torch.zeros(self.parameters)


def vectors_of(task: Task, scheme: str) -> tuple[Tensor, Tensor, int]:
    """Training inputs (n, features), their classes, and the number of classes. Reject a task without them."""
    match task:
        case Classification():
            inputs, labels, classes = task.train_inputs, task.train_labels, task.classes
        case OwnTask() if task.labels is not None:
            inputs, labels = task.form.converted(task.train[0], torch.float32), task.train[1]
            classes = int(torch.cat([labels, task.test[1]]).max()) + 1
        case _:
            raise ScenarioError("schemes", scheme, f"needs classes, and the task {task.name} has none")
    if inputs.ndim != 2 or not inputs.is_floating_point():
        rule = f"needs vectors as inputs, and the task {task.name} has others; set learning.backbone for images"
        raise ScenarioError("schemes", scheme, rule)
    return inputs, labels, classes
