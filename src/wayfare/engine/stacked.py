"""Devices stacked in one batch of models: hand-written batched matrix products for perceptrons.

A step of a small model is too short for a processor: most of the time goes into calls, not arithmetic. All devices take
the same step on models of their own, so their layers stack into (n, outputs, inputs) and one call serves the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.base import Burst, LocalTraining
from wayfare.errors import ScenarioError
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Classification

# Weights of a group stay in the cache of one core from step to step (measured in benchmarks/engine.py).
_GROUP_BYTES = 4 << 20
_SMALLEST_GROUP = 4


class StackedMlp:
    """Forward, backward and update of n perceptrons at once, in place on their flat vectors."""

    def __init__(self, training: LocalTraining) -> None:
        task = training.task
        if not (isinstance(task, Classification) and isinstance(task.model, Mlp)):
            raise ScenarioError("--engine", "stacked", f"stacks perceptrons only, and {task.name} is none")
        self._training, self._task, self._model = training, task, task.model

    @torch.inference_mode()
    def run(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Advance bursts in groups that fit the cache; within a group all take a step together."""
        # The longest first: bursts of a group end at about the same time, and those under way are always a prefix.
        bursts = sorted((burst for burst in bursts if burst.steps), key=lambda burst: (-burst.steps, burst.device))
        width = max(_GROUP_BYTES // (models.shape[1] * models.element_size()), _SMALLEST_GROUP)
        for group in (bursts[first : first + width] for first in range(0, len(bursts), width)):
            self._run_group(models, group)

    def _run_group(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Copy in, step, copy out; bursts that end sooner leave the stack, so no step is padding."""
        devices = torch.tensor([burst.device for burst in bursts])
        # Each layer is copied into a stack of its own, for products update a dense stack in one call.
        views = [view for layer in self._model.views(models) for view in layer]
        stacks = [view.index_select(0, devices) for view in views]
        underway = stacks
        batches = [self._training.batches.of(burst.device, burst.first_round, burst.steps) for burst in bursts]
        for step in range(bursts[0].steps):
            active = sum(1 for burst in bursts if burst.steps > step)
            samples = torch.from_numpy(np.concatenate([batch[step] for batch in batches[:active]]))
            if active < len(underway[0]):
                underway = [stack[:active] for stack in stacks]
            self._step(list(zip(underway[::2], underway[1::2], strict=True)), samples)
        for view, stack in zip(views, stacks, strict=True):
            view.index_copy_(0, devices, stack)

    def _step(self, layers: Sequence[tuple[Tensor, Tensor]], samples: Tensor) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        task, batch_size, count = self._task, self._training.batches.batch_size, len(layers[0][0])
        signal = task.inputs(samples).to(layers[0][0].dtype).view(count, batch_size, -1)
        signals = [signal]
        for depth, (weights, biases) in enumerate(layers):
            signal = torch.baddbmm(biases, signal, weights.transpose(1, 2))
            if depth < len(layers) - 1:
                signal.relu_()
            signals.append(signal)
        labels = task.train_labels.index_select(0, samples).view(count, batch_size, 1)
        error = _loss_gradient(signals[-1], labels).mul_(self._training.learning_rate / batch_size)
        for depth in reversed(range(len(layers))):
            weights, biases = layers[depth]
            # The error moves on through the weights as they were before this step.
            passed_on = torch.bmm(error, weights) if depth else None
            weights.baddbmm_(error.transpose(1, 2), signals[depth], alpha=-1)
            biases.sub_(error.sum(dim=1, keepdim=True))
            if passed_on is not None:
                error = torch.ops.aten.threshold_backward(passed_on, signals[depth], 0)


def _loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy: softmax(z) - onehot(y). Written out, for softmax is slow over so short a last axis."""
    gradient = (logits - logits.amax(dim=2, keepdim=True)).exp_()
    gradient.div_(gradient.sum(dim=2, keepdim=True))
    gradient.scatter_add_(2, labels, gradient.new_full((), -1.0).expand(labels.shape))
    return gradient
