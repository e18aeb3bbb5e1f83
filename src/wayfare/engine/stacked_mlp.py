"""Perceptrons of many devices stacked in batched matrix products.

A step of a small model is too short for a CPU: most of the time goes into calls, not arithmetic. All devices take
the same step on their own models, so their layers stack into (n, outputs, inputs) and one call serves the fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wayfare.engine.base import Burst, LocalTraining, Stack, Steering, Step, descend, split, stacked_steps, steered
from wayfare.errors import ScenarioError
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Labelled

# The weights of a group stay in the cache of one core between steps (measured in benchmarks/engine.py).
_GROUP_BYTES = 4 << 20
_SMALLEST_GROUP = 4
# On a GPU only memory limits a group.
_GROUP_BYTES_CUDA = 4 << 30


class StackedMlp(Stack):
    """Forward, backward and update of n perceptrons at once."""

    def __init__(self, training: LocalTraining) -> None:
        task = training.task.to(training.compute.device)
        if not (isinstance(task, Labelled) and isinstance(task.model, Mlp)):
            raise ScenarioError("engine", "stacked", f"needs a perceptron; {task.name} is not one")
        super().__init__(training)
        self._task, self._model = task, task.model

    @staticmethod
    def fits(task: Task) -> bool:
        return isinstance(task, Labelled) and isinstance(task.model, Mlp)

    def _width(self, model: Tensor) -> int:
        group_bytes = _GROUP_BYTES_CUDA if model.is_cuda else _GROUP_BYTES
        return max(group_bytes // (model.numel() * model.element_size()), _SMALLEST_GROUP)

    @torch.inference_mode()
    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        pieces = [self._pieces(model) for model in models]
        stacks = self._stacks(pieces)
        underway = stacks
        with steered(self._training, bursts, stacks, self._views) as steering:
            for step in stacked_steps(self._training, bursts):
                active = len(step.samples)
                if active < len(underway[0]):
                    underway = [stack[:active] for stack in stacks]
                self._step(underway, step, steering)
        trained = zip(*(stack.flatten(1).unbind() for stack in stacks), strict=True)
        torch._foreach_copy_(
            [piece for model in pieces for piece in model], [piece for model in trained for piece in model]
        )

    @property
    def _shapes(self) -> list[tuple[int, int]]:
        return [shape for inputs, outputs in self._model.layers for shape in ((outputs, inputs), (1, outputs))]

    def _pieces(self, model: Tensor) -> tuple[Tensor, ...]:
        return tuple(model.split_with_sizes([rows * columns for rows, columns in self._shapes]))

    def _views(self, block: Tensor) -> list[Tensor]:
        return split(block, self._shapes)

    def _stacks(self, pieces: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
        """Copy each layer into its own dense stack, which products can update in one call."""
        return [
            torch.stack(layer).view(len(pieces), *shape)
            for layer, shape in zip(zip(*pieces, strict=True), self._shapes, strict=True)
        ]

    def _step(self, weights: Sequence[Tensor], step: Step, steering: Steering) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        (count, batch_size), samples = step.samples.shape, step.samples.reshape(-1)
        inputs = self._task.inputs(samples, None if step.crops is None else step.crops.reshape(-1, 3))
        signals = _signals(layers, inputs.to(weights[0].dtype).reshape(count, batch_size, -1))
        logits = signals[-1]
        if step.offsets is not None:
            logits = logits + step.offsets.to(logits).unsqueeze(1)
        labels = self._task.train_labels.index_select(0, samples).view(count, batch_size, 1)
        error = _loss_gradient(logits, labels)
        if self._training.descent.pulls_at_most:
            self._update(layers, signals, error.mul_(self._training.learning_rate / batch_size), step, steering)
        else:
            gradients = _gradients(layers, signals, error.div_(batch_size))
            descend(list(weights), gradients, steering, self._training, step.shares)

    def _update(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        signals: Sequence[Tensor],
        error: Tensor,
        step: Step,
        steering: Steering,
    ) -> None:
        """Update the weights directly by products, for plain SGD with an optional pull."""
        if step.shares is not None:
            error.mul_(step.shares.to(error).view(-1, 1, 1))
        for depth in reversed(range(len(layers))):
            weights, biases = layers[depth]
            # Propagate the error through the weights before they change.
            passed_on = torch.bmm(error, weights) if depth else None
            if steering.received is not None:
                self._pull(weights, steering.received[2 * depth], step)
                self._pull(biases, steering.received[2 * depth + 1], step)
            weights.baddbmm_(error.transpose(1, 2), signals[depth], alpha=-1)
            biases.sub_(error.sum(dim=1, keepdim=True))
            if passed_on is not None:
                error = torch.ops.aten.threshold_backward(passed_on, signals[depth], 0)

    def _pull(self, weights: Tensor, received: Tensor, step: Step) -> None:
        """w <- w - eta mu (w - received), the proximal part of a step."""
        reach = self._training.learning_rate * self._training.descent.pull
        if step.shares is None:
            weights.lerp_(received[: len(weights)], reach)
        else:
            weights.lerp_(received[: len(weights)], (reach * step.shares).to(weights).view(-1, 1, 1))


def _signals(layers: Sequence[tuple[Tensor, Tensor]], signal: Tensor) -> list[Tensor]:
    """Inputs of the first layer (devices, batch, features) and outputs of every layer."""
    signals = [signal]
    for depth, (weights, biases) in enumerate(layers):
        signal = torch.baddbmm(biases, signal, weights.transpose(1, 2))
        if depth < len(layers) - 1:
            signal.relu_()
        signals.append(signal)
    return signals


def _gradients(layers: Sequence[tuple[Tensor, Tensor]], signals: Sequence[Tensor], error: Tensor) -> list[Tensor]:
    """Gradients of weights and biases in turn, from the error of the logits."""
    gradients: list[Tensor] = []
    for depth in reversed(range(len(layers))):
        gradients[:0] = torch.bmm(error.transpose(1, 2), signals[depth]), error.sum(dim=1, keepdim=True)
        if depth:
            error = torch.ops.aten.threshold_backward(torch.bmm(error, layers[depth][0]), signals[depth], 0)
    return gradients


def _loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy: softmax(z) - onehot(y). Written out, because softmax is slow over a short last axis."""
    gradient = (logits - logits.amax(dim=2, keepdim=True)).exp_()
    gradient.div_(gradient.sum(dim=2, keepdim=True))
    gradient.scatter_add_(2, labels, gradient.new_full((), -1.0).expand(labels.shape))
    return gradient
