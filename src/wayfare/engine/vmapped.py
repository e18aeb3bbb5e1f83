"""Devices stacked by `torch.func.vmap`: slower than hand-written stacks, but works for any module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from wayfare.engine.base import Burst, LocalTraining, Stack, Steering, Step, descend, split, stacked_steps, steered
from wayfare.learning.local_loss import loss_of
from wayfare.learning.models.base import statistics, trainable
from wayfare.learning.tasks import Task

_WIDTH_CPU, _WIDTH_CUDA = 8, 32


class Vmapped(Stack):
    """The gradient of a task's loss, mapped over devices with their parameters, statistics and minibatches."""

    def __init__(self, training: LocalTraining) -> None:
        super().__init__(training)
        loss = _Loss(training.task.to(training.compute.device)).train().to(training.compute.device)
        self._shapes = {name: entry.shape for name, entry in trainable(loss).items()}
        self._statistics = {name: entry.shape for name, entry in statistics(loss).items()}
        self._counters = {name: entry for name, entry in loss.named_buffers() if not entry.is_floating_point()}

        def device_loss(
            weights: dict[str, Tensor],
            buffers: dict[str, Tensor],
            samples: Tensor,
            crops: Tensor | None,
            offset: Tensor | None,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            value = functional_call(loss, {**weights, **buffers}, (samples, crops, offset))
            return value, {name: buffers[name] for name in self._statistics}

        self._loss, self._gradients = loss, grad(device_loss, has_aux=True)

    def _width(self, model: Tensor) -> int:
        return _WIDTH_CUDA if model.is_cuda else _WIDTH_CPU

    @torch.no_grad()
    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        # Frozen parameters and constants come from the module, in the type of the models.
        self._loss.to(models[0].dtype)
        shapes = {**self._shapes, **self._statistics}
        pieces = split(torch.stack(list(models)), shapes.values())
        stacks = {name: piece.clone() for name, piece in zip(shapes, pieces, strict=True)}
        with steered(self._training, bursts, [stacks[name] for name in self._shapes], self._views) as steering:
            for step in stacked_steps(self._training, bursts):
                self._step({name: stack[: len(step.samples)] for name, stack in stacks.items()}, step, steering)
        block = torch.cat([stack.reshape(len(models), -1) for stack in stacks.values()], dim=1)
        torch._foreach_copy_(list(models), list(block.unbind()))

    def _views(self, block: Tensor) -> list[Tensor]:
        return split(block, self._shapes.values())

    def _step(self, stacks: dict[str, Tensor], step: Step, steering: Steering) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        weights = {name: stacks[name] for name in self._shapes}
        buffers = {name: stacks[name].clone() for name in self._statistics}
        # Counters of minibatches are not part of a vector, but each device needs one.
        buffers |= {name: entry.repeat(len(step.samples), *[1] * entry.dim()) for name, entry in self._counters.items()}
        in_dims = 0, 0, 0, None if step.crops is None else 0, None if step.offsets is None else 0
        mapped = vmap(self._gradients, in_dims=in_dims, randomness="error")
        gradients, advanced = mapped(weights, buffers, step.samples, step.crops, step.offsets)
        directions = [gradients[name] for name in weights]
        descend(list(weights.values()), directions, steering, self._training, step.shares)
        for name, value in advanced.items():
            stacks[name].copy_(value)


class _Loss(nn.Module):
    """The loss of a task as a module, so that its parameters can be replaced by those of any device."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task, self.module = task, task.model.module()

    def forward(self, samples: Tensor, crops: Tensor | None, offset: Tensor | None) -> Tensor:
        return loss_of(self._task, self.module, samples, crops, offset)
