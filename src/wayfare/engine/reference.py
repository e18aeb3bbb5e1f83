"""Plain PyTorch, one device after another: the reference for all other engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wayfare.engine.base import (
    Burst,
    Engine,
    LocalTraining,
    Steering,
    Tensors,
    gradients_of,
    minibatches,
    seeds,
    split,
    steering_of,
)
from wayfare.learning.chance import seeded_generators
from wayfare.learning.local_loss import loss_of
from wayfare.learning.models.base import load_vector, read_vector, trainable
from wayfare.learning.models.wrapped import Wrapped


class Reference(Engine):
    """Trains with a module, autograd and SGD."""

    def __init__(self, training: LocalTraining) -> None:
        self._training, self._task = training, training.task.to(training.compute.device)

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        if not bursts:
            return
        module = self._task.model.module().to(models[0]).train()
        for layer in module.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.register_forward_pre_hook(_in_order)
        weights = list(trainable(module).values())
        compute = self._training.compute
        with compute.numerics(), seeded_generators(compute.device) as set_seed:
            for model, burst in zip(models, bursts, strict=True):
                load_vector(module, model)
                chosen = minibatches(self._training, burst)
                vectors = steering_of(self._training, [burst])
                steering = vectors.each(lambda vector: _tensors_of(vector[0], weights))
                for step, (samples, seed) in enumerate(zip(chosen.samples, seeds(self._training, burst), strict=True)):
                    set_seed(seed)
                    crops = None if chosen.crops is None else chosen.crops[step]
                    loss = loss_of(self._task, module, samples, crops, chosen.offset)
                    gradients = gradients_of(loss, weights)
                    share = 1.0 if chosen.shares is None else float(chosen.shares[step])
                    with torch.no_grad():
                        directions = self._directions(gradients, weights, steering)
                        for weight, direction in zip(weights, directions, strict=True):
                            weight.sub_(direction, alpha=self._training.learning_rate * share)
                model.copy_(read_vector(module))
                if vectors.velocity is not None and steering.velocity is not None:
                    vectors.velocity[0].copy_(torch.cat([each.flatten() for each in steering.velocity]))

        if isinstance(self._task.model, Wrapped):
            self._task.model.reject_changes(module)

    def _directions(self, gradients: Tensors, weights: Sequence[Tensor], steering: Steering) -> Tensors:
        """The formulas of `Descent`, line by line."""
        descent = self._training.descent
        if steering.received is not None:
            gradients = [
                gradient + descent.pull * (weight - received)
                for gradient, weight, received in zip(gradients, weights, steering.received, strict=True)
            ]
        if steering.correction is not None:
            gradients = [
                gradient + correction for gradient, correction in zip(gradients, steering.correction, strict=True)
            ]
        if descent.clip_norm is not None:
            length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            if length > descent.clip_norm:
                gradients = [gradient * (descent.clip_norm / length) for gradient in gradients]
        if descent.weight_decay:
            gradients = [
                gradient + descent.weight_decay * weight for gradient, weight in zip(gradients, weights, strict=True)
            ]
        if steering.velocity is not None:
            for velocity, gradient in zip(steering.velocity, gradients, strict=True):
                velocity.mul_(descent.momentum).add_(gradient)
            gradients = steering.velocity
        return gradients


def _in_order(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Copy images with their channels last where PyTorch 2.13 crashes on a CPU: the weights alone need gradients."""
    (images,) = inputs
    crashes = images.is_cpu and not images.requires_grad and isinstance(layer.weight, Tensor)
    return (images.contiguous() if crashes and layer.weight.requires_grad else images,)


def _tensors_of(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    block = vector.to(weights[0], copy=True).unsqueeze(0)
    return [piece[0] for piece in split(block, [weight.shape for weight in weights])]
