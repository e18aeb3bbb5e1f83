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
from wayfare.learning.models.tuned import Tuned
from wayfare.learning.sums.classifiers import linear_classifier
from wayfare.learning.sums.layout import Sums
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Classification, Labelled
from wayfare.learning.tasks.own import OwnTask
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.methods import Collection


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

    def __init__(self, entries: int, trained: Model) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.zeros(entries))
        self.network = trained.module()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs)
        return logits


@dataclass(frozen=True)
class SumsModel:
    """A vector of sums, and after them that of the trained network if devices train on.

    The network ends with a linear layer on the features whose statistics are summed, at the end of its vector.
    """

    layout: Sums
    trained: Mlp | Tuned | None = None
    statistics: int = 0

    @cached_property
    def _solve(self) -> _Solver:
        return _Solver(self.layout)

    @property
    def parameters(self) -> int:
        return self.layout.entries + (0 if self.trained is None else self.trained.parameters)

    def module(self) -> nn.Module:
        entries = self.layout.entries
        return _FromSums(self._solve, entries) if self.trained is None else _AfterSums(entries, self.trained)

    def initial(self, rng: np.random.Generator) -> Tensor:
        """No sums, and a last layer of zeros, to which the server adds; other entries start as without statistics."""
        start = torch.zeros(self.parameters)
        if isinstance(self.trained, Tuned):
            blocks = self.trained.initial(rng)[: -self.trained.head.parameters]
            start[self.layout.entries :][: len(blocks)] = blocks
        return start

    def classifier(self, sums: Tensor) -> Tensor:
        """What sums give to the trained entries: a linear layer at their end."""
        weights, bias = (self.layout.collection.sharpness * part for part in self._solve(sums))
        before = self.trained.parameters - self.trained.head.parameters if isinstance(self.trained, Tuned) else 0
        return torch.cat([weights.new_zeros(before), weights.flatten(), bias])


def vectors_of(task: Task, scheme: str) -> tuple[Tensor, Tensor, int]:
    """Training inputs (n, features), their classes, and the number of classes. Reject a task without them."""
    match task:
        case Classification():
            inputs, labels, classes = task.train_inputs, task.train_labels, task.classes
        case TunedClassification() if task.train_features is not None:
            inputs, labels, classes = task.train_features, task.train_labels, task.classes
        case OwnTask() if task.labels is not None:
            inputs, labels = task.form.converted(task.train[0], torch.float32), task.train[1]
            least, most = torch.cat([labels, task.test[1]]).aminmax()
            if least < 0:
                rule = f"needs classes from 0 on, and the task {task.name} has the label {int(least)}"
                raise ScenarioError("schemes", scheme, rule)
            classes = int(most) + 1
        case Labelled():
            raise _needs_vectors(task, scheme)
        case _:
            raise ScenarioError("schemes", scheme, f"needs classes, and the task {task.name} has none")
    if inputs.ndim != 2 or not inputs.is_floating_point():
        raise _needs_vectors(task, scheme)
    return inputs, labels, classes


def _needs_vectors(task: Task, scheme: str) -> ScenarioError:
    rule = f"needs vectors as inputs, and the task {task.name} has others; set learning.backbone for images"
    return ScenarioError("schemes", scheme, rule)


def task_of_sums(task: Task, collection: Collection, scheme: str) -> tuple[Task, Mlp | Tuned | None]:
    """The task whose vectors a method sums, and the network that devices then train, if they do.

    Where a part of a backbone is trained, sums are those of the features with which the training starts.
    """
    if not (isinstance(task, TunedClassification) and isinstance(task.model, Tuned)):
        inputs, _, classes = vectors_of(task, scheme)
        if collection.trains and isinstance(task, OwnTask):
            _reject_other_layers(task, inputs.shape[1], scheme)
        return task, Mlp((inputs.shape[1], classes)) if collection.trains else None
    features = task.on_features()
    if not collection.trains:
        return features, None
    return replace(task, train_features=features.train_inputs), task.model


def _reject_other_layers(task: OwnTask, features: int, scheme: str) -> None:
    network = task.model.module()
    if not isinstance(network, nn.Linear):
        rule = f"{scheme} starts from class statistics, which give one layer; must be nn.Linear({features}, classes)"
        raise ScenarioError("network", type(network).__name__, rule)


def with_model(task: Task, model: Model) -> Task:
    """The same task with another network. `vectors_of` accepts no tasks but these."""
    assert isinstance(task, Classification | OwnTask | TunedClassification)
    return replace(task, model=model)
