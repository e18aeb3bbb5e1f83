"""Plain PyTorch, one device after another: the truth for the other engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wayfare.engine.base import Burst, LocalTraining


class Reference:
    """A module, autograd, and the update of SGD."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    def run(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Advance one device after another."""
        task, learning_rate = self._training.task, self._training.learning_rate
        module = task.model.module().to(models.dtype)
        weights = list(module.parameters())
        inputs = task.train_inputs.to(models.dtype)
        for burst in bursts:
            with torch.no_grad():
                nn.utils.vector_to_parameters(models[burst.device], weights)
            for batch in torch.from_numpy(
                self._training.batches.of(burst.device, burst.first_round, burst.steps)
            ).unbind():
                loss = nn.functional.cross_entropy(module(inputs[batch]), task.train_labels[batch])
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight.sub_(gradient, alpha=learning_rate)
            with torch.no_grad():
                models[burst.device] = nn.utils.parameters_to_vector(weights)
