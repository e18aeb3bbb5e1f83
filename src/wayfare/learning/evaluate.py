"""How good a global model is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wayfare.learning.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy and mean cross-entropy on the test set."""

    accuracy: float
    loss: float


class Evaluator:
    """Evaluates flat models on the test set of a task."""

    def __init__(self, task: Task) -> None:
        self._task, self._module = task, task.model.module()

    @torch.no_grad()
    def __call__(self, model: Tensor) -> Evaluation:
        """Accuracy and loss of one flat model."""
        nn.utils.vector_to_parameters(model.to(self._task.test_inputs.dtype), self._module.parameters())
        logits = self._module(self._task.test_inputs)
        labels = self._task.test_labels
        return Evaluation(
            accuracy=float((logits.argmax(dim=1) == labels).double().mean()),
            loss=float(nn.functional.cross_entropy(logits, labels)),
        )
