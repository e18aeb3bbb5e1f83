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

# Weights of a group stay in the cache of one core from step to step (measured in benchmarks/engine.py).
_GROUP_BYTES = 8 << 20
_SMALLEST_GROUP = 4
# Rows begin on a cache line, which strided matrix products like.
_ALIGN = 16


class StackedMlp:
    """Forward, backward and update of n perceptrons at once, in place on their flat vectors."""

    def __init__(self, training: LocalTraining) -> None:
        self._training = training

    @torch.no_grad()
    def run(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Advance bursts in groups that fit the cache; within a group all take a step together."""
        # The longest first: bursts of a group end at about the same time, and those under way are always a prefix.
        bursts = sorted((burst for burst in bursts if burst.steps), key=lambda burst: (-burst.steps, burst.device))
        width = max(_GROUP_BYTES // (models.shape[1] * models.element_size()), _SMALLEST_GROUP)
        for group in (bursts[first : first + width] for first in range(0, len(bursts), width)):
            self._run_group(models, group)

    def _run_group(self, models: Tensor, bursts: Sequence[Burst]) -> None:
        """Copy in, step, copy out; bursts that end sooner leave the stack, so no step is padding."""
        devices = [burst.device for burst in bursts]
        stack = models.new_empty(len(bursts), aligned(models.shape[1]))[:, : models.shape[1]]
        torch.index_select(models, 0, torch.tensor(devices), out=stack)
        batches = [self._training.batches.of(burst.device, burst.first_round, burst.steps) for burst in bursts]
        for step in range(bursts[0].steps):
            active = sum(1 for burst in bursts if burst.steps > step)
            samples = torch.from_numpy(np.concatenate([batch[step] for batch in batches[:active]]))
            self._step(stack[:active], samples)
        models[devices] = stack

    def _step(self, models: Tensor, samples: Tensor) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        task, batch_size = self._training.task, self._training.batches.batch_size
        layers = list(task.model.views(models))
        signal = task.train_inputs.index_select(0, samples).to(models.dtype).view(len(models), batch_size, -1)
        signals = [signal]
        for depth, (weights, biases) in enumerate(layers):
            signal = torch.baddbmm(biases, signal, weights.transpose(1, 2))
            if depth < len(layers) - 1:
                signal.relu_()
            signals.append(signal)
        labels = task.train_labels.index_select(0, samples).view(len(models), batch_size, 1)
        error = _loss_gradient(signals[-1], labels).mul_(self._training.learning_rate / batch_size)
        for depth in reversed(range(len(layers))):
            weights, biases = layers[depth]
            # The error moves on through the weights as they were before this step.
            passed_on = torch.bmm(error, weights) if depth else None
            weights.baddbmm_(error.transpose(1, 2), signals[depth], alpha=-1)
            biases.sub_(error.sum(dim=1, keepdim=True))
            if passed_on is not None:
                error = torch.ops.aten.threshold_backward(passed_on, signals[depth], 0)


def aligned(parameters: int) -> int:
    """The stride of a row of a stack, in entries."""
    return -(-parameters // _ALIGN) * _ALIGN


def _loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy: softmax(z) - onehot(y). Written out, for softmax is slow over so short a last axis."""
    gradient = (logits - logits.amax(dim=2, keepdim=True)).exp_()
    gradient.div_(gradient.sum(dim=2, keepdim=True))
    gradient.scatter_add_(2, labels, gradient.new_full((), -1.0).expand(labels.shape))
    return gradient
