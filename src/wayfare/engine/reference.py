"""Plain PyTorch, one device after another: the truth for the other engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wayfare.engine.base import Burst, LocalTraining, minibatches, received_models
from wayfare.learning.local_loss import loss_of
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
                pulled_to = self._received(burst, weights)
                for step in range(burst.steps):
                    crops = None if chosen.crops is None else chosen.crops[step]
                    loss = loss_of(self._task, module, chosen.samples[step], crops, chosen.offset)
                    gradients = torch.autograd.grad(loss, weights)
                    share = 1.0 if chosen.shares is None else float(chosen.shares[step])
                    with torch.no_grad():
                        if pulled_to is not None:
                            gradients = tuple(
                                gradient + self._training.local_loss.pull * (weight - received)
                                for gradient, weight, received in zip(gradients, weights, pulled_to, strict=True)
                            )
                        for weight, gradient in zip(weights, gradients, strict=True):
                            weight.sub_(gradient, alpha=self._training.learning_rate * share)
                model.copy_(read_vector(module))

    def _received(self, burst: Burst, weights: Sequence[Tensor]) -> list[Tensor] | None:
        """The model that a proximal term pulls towards, weight by weight."""
        models = received_models(self._training, [burst], weights[0])
        if models is None:
            return None
        pieces = models[0][: self._task.model.parameters].split_with_sizes([weight.numel() for weight in weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
