"""Plain PyTorch, one device after another: the truth for the other engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wayfare.engine.base import Burst, LocalTraining
from wayfare.learning.models.base import load_vector, read_vector


class Reference:
    """A module, autograd, and the update of SGD."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    def run(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Advance one device after another."""
        task, learning_rate = self._training.task, self._training.learning_rate
        module = task.model.module().to(models).train()
        weights = list(module.parameters())
        for burst in bursts:
            load_vector(module, models[burst.device])
            batches = self._training.batches.of(burst.device, burst.first_round, burst.steps)
            for batch in torch.from_numpy(batches).to(models.device).unbind():
                gradients = torch.autograd.grad(task.loss(module, batch), weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight.sub_(gradient, alpha=learning_rate)
            models[burst.device] = read_vector(module)
