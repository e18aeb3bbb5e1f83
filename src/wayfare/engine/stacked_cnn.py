"""Devices stacked in one network: grouped convolutions, then batched matrix products.

The channels of n devices are concatenated, (batch, n C, height, width), and a convolution with n groups keeps them
apart. Normalisation without affine parameters needs no change: n C channels have the statistics of n networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wayfare.engine import winograd
from wayfare.engine.base import Burst, LocalTraining, Stack, Steering, Step, descend, split, stacked_steps, steered
from wayfare.engine.normalised import batch_norm
from wayfare.errors import ScenarioError
from wayfare.learning.models.base import entries
from wayfare.learning.models.resnet9 import Residual
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Labelled

# Devices per stack. On a CPU the signals of a layer should stay in the cache, and a large layer fills it alone
# (measured in benchmarks/rounds.py).
_WIDTH_CPU, _WIDTH_CUDA = 5, 32
_ALONE_FROM_PARAMETERS = 1_000_000


class StackedCnn(Stack):
    """Forward, backward and update of n convolutional networks at once."""

    def __init__(self, training: LocalTraining) -> None:
        task = training.task.to(training.compute.device)
        if not (isinstance(task, Labelled) and _stackable(task.model.module())):
            raise ScenarioError("engine", "stacked", f"does not support the network of {task.name}")
        super().__init__(training)
        self._task = task
        self._alone = training.compute.device.type == "cpu" and task.model.parameters >= _ALONE_FROM_PARAMETERS
        self._network = _Network(task.model.module(), alone=self._alone)

    @staticmethod
    def fits(task: Task) -> bool:
        return isinstance(task, Labelled) and _stackable(task.model.module())

    def _width(self, model: Tensor) -> int:
        if model.is_cuda:
            return _WIDTH_CUDA
        return 1 if self._alone else _WIDTH_CPU

    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        # A single model is trained in place if the layout of its layers allows it.
        block = torch.stack(list(models)) if len(models) > 1 else models[0].unsqueeze(0)
        pieces = self._network.pieces(block)
        stacks = self._network.stacks(pieces)
        weights = stacks[: self._network.weights]
        with steered(self._training, bursts, weights, self._network.weights_of) as steering:
            for step in stacked_steps(self._training, bursts):
                self._step([stack[: len(step.samples)] for stack in stacks], step, steering)
        for piece, stack in zip(pieces, stacks, strict=True):
            if stack.data_ptr() != piece.data_ptr():
                piece.copy_(stack)
        if len(models) > 1:
            torch._foreach_copy_(list(models), list(block.unbind()))

    def _step(self, stacks: Sequence[Tensor], step: Step, steering: Steering) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        task, samples, crops, (count, batch_size) = self._task, step.samples, step.crops, step.samples.shape
        # Order by sample, then device, so that the devices' channels are adjacent.
        flat = samples.t().reshape(-1)
        inputs = task.inputs(flat, None if crops is None else crops.transpose(0, 1).reshape(-1, 3)).to(stacks[0].dtype)
        signal = inputs.reshape(batch_size, count * inputs.shape[1], *inputs.shape[2:])
        weights = [stack.detach().requires_grad_() for stack in stacks[: self._network.weights]]
        logits = self._network(signal.contiguous(memory_format=torch.channels_last), weights, stacks, count)
        if step.offsets is not None:
            logits = logits + step.offsets.unsqueeze(1)
        labels = task.train_labels.index_select(0, samples.reshape(-1))
        loss = functional.cross_entropy(logits.reshape(count * batch_size, -1), labels, reduction="sum") / batch_size
        descend(weights, torch.autograd.grad(loss, weights), steering, self._training, step.shares)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A layer, and the index of its first tensor among the stacks."""

    layer: nn.Module
    first: int
    inner: tuple[_Stage, ...] = ()
    convolution: winograd.Winograd | None = None  # replaces PyTorch's convolution on a CPU


class _Network:
    """A module whose layers can be applied to stacks of their tensors.

    ``alone``: one device at a time on a CPU; large convolutions then use Winograd's method.
    """

    def __init__(self, module: nn.Module, *, alone: bool = False) -> None:
        self._alone = alone
        self._shapes = [entry.shape for entry in entries(module)]
        # Kernels stored with their nine entries first, as Winograd's method needs them.
        self._entries_first: set[int] = set()
        self.weights = len(list(module.parameters()))
        self._weight, self._statistic = 0, self.weights
        self._stages = tuple(self._read(module))

    def _read(self, module: nn.Module) -> Iterator[_Stage]:
        """Stages in the order of their application, which is the order of the vector."""
        layers = list(module) if isinstance(module, nn.Sequential) else [module]
        for index, layer in enumerate(layers):
            if isinstance(layer, nn.Sequential):
                yield from self._read(layer)
            elif isinstance(layer, Residual):
                yield _Stage(layer, 0, tuple(self._read(layer.inner)))
            elif isinstance(layer, nn.Conv2d) and self._alone and winograd.pays(layer):
                self._entries_first.add(self._weight)
                yield _Stage(layer, self._weight, convolution=winograd.Winograd())
                self._weight += 1
            elif isinstance(layer, nn.Conv2d | nn.Linear):
                yield _Stage(layer, self._weight)
                self._weight += len(list(layer.parameters()))
            elif isinstance(layer, nn.BatchNorm2d):
                yield _Stage(layer, self._statistic)
                self._statistic += 2
            elif isinstance(layer, nn.ReLU) and index + 1 < len(layers) and isinstance(layers[index + 1], nn.MaxPool2d):
                # ReLU and max pooling commute; pooling first leaves fewer values.
                layers[index], layers[index + 1] = layers[index + 1], layer
                yield _Stage(layers[index], 0)
            else:
                yield _Stage(layer, 0)

    def pieces(self, block: Tensor) -> list[Tensor]:
        return split(block, self._shapes)

    def weights_of(self, block: Tensor) -> list[Tensor]:
        return split(block, self._shapes[: self.weights])

    def stacks(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The pieces as dense stacks, copied if necessary."""
        stacks = []
        for index, piece in enumerate(pieces):
            if index in self._entries_first:
                stacks.append(piece.permute(3, 4, 0, 1, 2).contiguous().permute(2, 3, 4, 0, 1))
            elif index < self.weights:
                stacks.append(piece.contiguous())
            else:
                # Statistics change before the backward pass and must not share memory with weights.
                stacks.append(piece.clone())
        return stacks

    def __call__(self, signal: Tensor, weights: Sequence[Tensor], stacks: Sequence[Tensor], count: int) -> Tensor:
        """Logits (n, batch, classes). Updates the running statistics in ``stacks``."""
        return self._apply(self._stages, signal, weights, stacks, count)

    def _apply(
        self, stages: Sequence[_Stage], signal: Tensor, weights: Sequence[Tensor], stacks: Sequence[Tensor], count: int
    ) -> Tensor:
        for stage in stages:
            match stage.layer:
                case Residual():
                    signal = signal + self._apply(stage.inner, signal, weights, stacks, count)
                case nn.Conv2d() if stage.convolution and winograd.has_tiles(signal):
                    signal = stage.convolution(signal, weights[stage.first].flatten(0, 1))
                case nn.Conv2d() as layer:
                    kernel = weights[stage.first].flatten(0, 1)
                    bias = None if layer.bias is None else weights[stage.first + 1].flatten()
                    signal = functional.conv2d(
                        signal, kernel, bias, layer.stride, layer.padding, layer.dilation, groups=count
                    )
                case nn.Linear() as layer:
                    kernel = weights[stage.first].transpose(1, 2)
                    signal = (
                        torch.bmm(signal, kernel)
                        if layer.bias is None
                        else torch.baddbmm(weights[stage.first + 1].unsqueeze(1), signal, kernel)
                    )
                case nn.BatchNorm2d() as layer:
                    mean, variance = stacks[stage.first].flatten(), stacks[stage.first + 1].flatten()
                    momentum = 0.1 if layer.momentum is None else layer.momentum
                    signal = (
                        batch_norm(signal, mean, variance, momentum, layer.eps)
                        if signal.device.type == "cpu"
                        else functional.batch_norm(signal, mean, variance, None, None, True, momentum, layer.eps)
                    )
                case nn.GroupNorm() as layer:
                    signal = functional.group_norm(signal, count * layer.num_groups, eps=layer.eps)
                case nn.Flatten():
                    # (batch, n C, height, width) -> (n, batch, C height width)
                    signal = signal.reshape(len(signal), count, -1).transpose(0, 1)
                case layer:
                    signal = layer(signal)
        return signal


def _stackable(module: nn.Module) -> bool:
    """Whether every layer of a module can be stacked."""
    match module:
        case nn.Sequential():
            return all(_stackable(layer) for layer in module)
        case Residual():
            return _stackable(module.inner)
        case nn.Conv2d():
            return module.groups == 1 and module.padding_mode == "zeros"
        case nn.BatchNorm2d():
            return not module.affine and module.track_running_stats and module.momentum is not None
        case nn.GroupNorm():
            return not module.affine
        case _:
            return isinstance(module, nn.Linear | nn.ReLU | nn.MaxPool2d | nn.Flatten)
