"""Sums as the parameters of a network, so that everything that handles a model handles them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.learning.models.base import Model
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.sums.classifiers import linear_classifier
from wayfare.learning.sums.layout import Sums
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.own import OwnTask


class _Solver:
    """Remembers the classifiers of the last two sums: solving takes a second for a thousand features."""

    def __init__(self, layout: Sums) -> None:
        self._layout = layout
        self._known: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []

    def __call__(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        for known, classifier in self._known:
            if known.device == sums.device and torch.equal(known, sums):
                return classifier
        classifier = linear_classifier(sums, self._layout)
        self._known = [(sums.detach().clone(), classifier), *self._known[:1]]
        return classifier


class _FromSums(nn.Module):
    """Classifies by sums."""

    def __init__(self, solve: _Solver, entries: int) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.zeros(entries))
        self._solve = solve

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, *self._solve(self.sums))


class _AfterSums(nn.Module):
    """Classifies by trained entries. The server adds to them what the sums before them give."""

    def __init__(self, entries: int, head: Mlp) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.zeros(entries))
        self.head = head.module()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(inputs)
        return logits


@dataclass(frozen=True)
class SumsModel:
    """A vector of sums, and of a trained linear layer after them if devices train on."""

    layout: Sums
    statistics: int = 0

    @cached_property
    def _solve(self) -> _Solver:
        return _Solver(self.layout)

    @property
    def head(self) -> Mlp | None:
        return Mlp((self.layout.features, self.layout.classes)) if self.layout.collection.trains else None

    @property
    def parameters(self) -> int:
        return self.layout.entries + (0 if self.head is None else self.head.parameters)

    def module(self) -> nn.Module:
        entries = self.layout.entries
        return _FromSums(self._solve, entries) if self.head is None else _AfterSums(entries, self.head)

    def initial(self, rng: np.random.Generator) -> Tensor:
        return torch.zeros(self.parameters)

    def classifier(self, sums: Tensor) -> Tensor:
        """The trained entries that sums give."""
        weights, bias = self._solve(sums)
        return torch.cat([weights.flatten(), bias])


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


def with_model(task: Task, model: Model) -> Task:
    """The same task with another network. `vectors_of` accepts no tasks but these."""
    assert isinstance(task, Classification | OwnTask)
    return replace(task, model=model)
