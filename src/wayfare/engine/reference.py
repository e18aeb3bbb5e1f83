"""Plain PyTorch, one device after another: the truth for the other engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wayfare.engine.base import Burst, LocalTraining, minibatches
from wayfare.learning.models.base import load_vector, read_vector


class Reference:
    """A module, autograd, and the update of SGD."""

    def __init__(self, training: LocalTraining) -> None:
        self._training, self._task = training, training.task.to(training.compute.device)

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Advance one device after another."""
        if not bursts:
            return
        module = self._task.model.module().to(models[0]).train()
        weights = list(module.parameters())
        with self._training.compute.numerics():
            for model, burst in zip(models, bursts, strict=True):
                load_vector(module, model)
                chosen = minibatches(self._training, burst)
                for step in range(burst.steps):
                    crops = None if chosen.crops is None else chosen.crops[step]
                    gradients = torch.autograd.grad(self._task.loss(module, chosen.samples[step], crops), weights)
                    share = 1.0 if chosen.shares is None else float(chosen.shares[step])
                    with torch.no_grad():
                        for weight, gradient in zip(weights, gradients, strict=True):
                            weight.sub_(gradient, alpha=self._training.learning_rate * share)
                model.copy_(read_vector(module))
