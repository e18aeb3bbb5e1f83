"""The engine that steps the devices of a traced network together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from wayfare.engine.base import (
    Burst,
    LocalTraining,
    Stack,
    Steering,
    Step,
    descend,
    gradients_of,
    seeds,
    split,
    stacked_steps,
    steered,
)
from wayfare.engine.traced.network import stacked_network
from wayfare.engine.traced.probing import NotStackableError
from wayfare.engine.traced.program import StackedNetwork
from wayfare.engine.traced.stepping import StackedStep, unfolded
from wayfare.engine.tuned.evaluation import evaluation_module
from wayfare.engine.tuned.network import tuned_network
from wayfare.errors import ScenarioError
from wayfare.learning.chance import generator_state, seeded_generators
from wayfare.learning.models.base import statistics, trainable
from wayfare.learning.tasks.own import OwnTask
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.sparsify.gpu import compiles

# The weights of a group, and its largest result, should stay in the cache (measured in benchmarks/engine.py).
_WEIGHT_BYTES, _RESULT_BYTES = 4 << 20, 8 << 20
_SMALLEST_GROUP, _LARGEST_GROUP = 4, 24
_ALONE_FROM_PARAMETERS = 1_000_000
# On a GPU only memory limits a group.
_BYTES_CUDA, _RESULT_BYTES_CUDA = 4 << 30, 16 << 30
_PROBED = 3, 5


class StackedTraced(Stack):
    """Forward, backward and update of n copies of a user's own network at once.

    Raises NotStackableError if they cannot share operations.
    """

    def __init__(self, training: LocalTraining) -> None:
        super().__init__(training)
        task = training.task.to(training.compute.device)
        if not isinstance(task, OwnTask | TunedClassification):
            raise NotStackableError("its loss is not a function of outputs and targets")
        self._task, self._where, self._averages = task, training.compute.device, task.averages
        # Otherwise gradients are needed as a whole.
        self._fuse = training.descent.pulls_at_most and not training.descent.pull
        module = task.model.module()
        self._shapes = [entry.shape for entry in trainable(module).values()]
        self._weights = len(self._shapes)
        self._shapes += [entry.shape for entry in statistics(module).values()]
        self._networks: dict[torch.dtype, StackedNetwork] = {}
        traced = self._network(torch.float32)
        self.draws, self.perceptron, self.slower = traced.draws, traced.perceptron, traced.slower
        if self.draws and self._where.type == "cuda":
            raise NotStackableError("it draws random numbers, which a GPU cannot key by device")
        if self._loss_draws(module):
            raise NotStackableError("its loss draws random numbers")

    def _loss_draws(self, module: nn.Module) -> bool:
        samples = torch.from_numpy(self._training.batches.of(0, 1, 1)[0]).to(self._where)
        inputs, targets = self._task.minibatch(samples, torch.float32)
        with torch.no_grad(), seeded_generators(self._where):
            outputs = module.to(self._where).train()(inputs)
            before = generator_state(self._where)
            self._task.loss_on(outputs, targets)
            return not torch.equal(before, generator_state(self._where))

    @property
    def casts(self) -> bool:
        """Whether the network computes in single precision, whatever the type of its parameters."""
        try:
            return self._network(torch.float64).casts
        except NotStackableError:
            return True

    def _network(self, real: torch.dtype) -> StackedNetwork:
        """The network in a type of numbers, traced on the samples of the first device."""
        if real not in self._networks:
            module = self._task.model.module().to(self._where, real).train()
            first = torch.from_numpy(np.resize(self._training.batches.of(0, 1, 1)[0], max(_PROBED))).to(self._where)
            one, two = (self._task.minibatch(first[:count], real)[0] for count in _PROBED)
            if isinstance(self._task, TunedClassification):
                cuda = self._where.type == "cuda"
                low = cuda and self._training.compute.precision == "bf16" and real == torch.float32
                self._networks[real] = tuned_network(
                    module,
                    (one, two),
                    signals=torch.bfloat16 if low else real,
                    kernels=cuda and compiles(self._where),
                )
            else:
                self._networks[real] = stacked_network(module, (one, two), fuse=self._fuse)
        return self._networks[real]

    def evaluated(self) -> nn.Module:
        """The network of the task; a part of a backbone is computed by its stack on a GPU."""
        module = self._task.model.module()
        if self._where.type != "cuda" or not isinstance(self._task, TunedClassification):
            return module
        first = torch.from_numpy(self._training.batches.of(0, 1, 1)[0]).to(self._where)
        inputs, _ = self._task.minibatch(first, torch.float32)
        return evaluation_module(module, self._network(torch.float32), inputs, self._training.compute)

    def _width(self, model: Tensor) -> int:
        weights = model.numel() * model.element_size()
        if model.is_cuda:
            results = (
                self._network(model.dtype).total_entries * self._training.batches.batch_size * model.element_size()
            )
            return max(min(_BYTES_CUDA // weights, _RESULT_BYTES_CUDA // max(results, 1)), _SMALLEST_GROUP)
        entries = self._network(model.dtype).sample_entries * self._training.batches.batch_size
        fits = min(_WEIGHT_BYTES // weights, _RESULT_BYTES // (entries * model.element_size()))
        smallest = 1 if model.numel() >= _ALONE_FROM_PARAMETERS else _SMALLEST_GROUP
        return min(max(fits, smallest), _LARGEST_GROUP)

    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        sizes = [math.prod(shape) for shape in self._shapes]
        pieces = [model.split_with_sizes(sizes) for model in models]
        # Each has its own memory, because a step changes some while others are needed.
        stacks = [
            torch.stack(entry).view(len(models), *shape)
            for entry, shape in zip(zip(*pieces, strict=True), self._shapes, strict=True)
        ]
        weights = stacks[: self._weights]
        network = self._network(models[0].dtype)
        keys = [seeds(self._training, burst) for burst in bursts] if network.draws else []
        with steered(self._training, bursts, weights, self._views) as steering:
            for number, step in enumerate(stacked_steps(self._training, bursts)):
                active = len(step.samples)
                shared = StackedStep(
                    count=active,
                    weights=[stack[:active] for stack in weights],
                    statistics=[stack[:active] for stack in stacks[self._weights :]],
                    rate=self._training.learning_rate,
                    shares=step.shares,
                    seeds=[key[number] for key in keys[:active]],
                )
                self._step(network, shared, step, steering)
        trained = zip(*(stack.view(len(models), -1).unbind() for stack in stacks), strict=True)
        torch._foreach_copy_(
            [piece for model in pieces for piece in model], [piece for model in trained for piece in model]
        )

    def _views(self, block: Tensor) -> list[Tensor]:
        return split(block, self._shapes[: self._weights])

    def _step(self, network: StackedNetwork, shared: StackedStep, step: Step, steering: Steering) -> None:
        """One SGD step of every stacked model, on its own minibatch."""
        if isinstance(self._task, TunedClassification):
            # Its layers choose their own types.
            with torch.autocast(self._where.type, enabled=False):
                self._take_direction(network, shared, step, steering)
        else:
            self._take_direction(network, shared, step, steering)

    def _take_direction(self, network: StackedNetwork, shared: StackedStep, step: Step, steering: Steering) -> None:
        inputs, targets = self._task.minibatch(step.samples.reshape(-1), shared.weights[0].dtype)
        tracked = [index for index in range(self._weights) if index not in network.fused]
        leaves = list(shared.weights)
        for index in tracked:
            leaves[index] = leaves[index].detach().requires_grad_()
        shared.weights = leaves
        needed = [leaves[index] for index in tracked]
        if network.fused:
            shared.trigger = inputs.new_zeros((), dtype=leaves[0].dtype).requires_grad_()
            needed.append(shared.trigger)
        outputs = network(inputs, shared)
        if step.offsets is not None:
            outputs = _with_offsets(outputs, step.offsets)
        loss = self._loss(outputs, targets, shared.count)
        gradients = gradients_of(loss, needed)[: len(tracked)]
        if tracked:
            descend(
                [leaves[index] for index in tracked],
                with_layout_of_weights(gradients) if self._where.type == "cuda" else gradients,
                self._of(steering, tracked),
                self._training,
                step.shares,
            )

    def _of(self, steering: Steering, tracked: Sequence[int]) -> Steering:
        return steering.each(lambda stacks: [stacks[index] for index in tracked])

    def _loss(self, outputs: Any, targets: Tensor, count: int) -> Tensor:
        """The sum of the devices' losses; only its gradient is needed."""
        if (
            self._task.loss_of is functional.cross_entropy
            and self._averages
            and targets.dim() == 1 == outputs.dim() - 1
        ):
            found: Tensor = _CrossEntropy.apply(outputs, targets, count)  # type: ignore[no-untyped-call]
            return found
        if self._averages:
            return self._task.loss_on(outputs, targets) * count
        parts = unfolded(targets, 0, count).unbind()
        leaves, form = tree_flatten(outputs)
        apart = zip(*(unfolded(leaf, 0, count).unbind() for leaf in leaves), strict=True)
        pairs = zip(apart, parts, strict=True)
        return torch.stack([self._task.loss_on(tree_unflatten(own, form), part) for own, part in pairs]).sum()


def with_layout_of_weights(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous gradients. If the strides of one differ from those of its weight, PyTorch updates them one by one."""
    # `contiguous` would keep any strides of axes of length 1.
    return [gradient.flatten().view(gradient.shape) for gradient in gradients]


class _CrossEntropy(torch.autograd.Function):
    """A number with the gradient of n mean cross-entropies: (softmax(z) - onehot(y)) / B.

    Written out, because softmax is slow over a short last axis.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, count: int) -> Tensor:
        gradient = (logits - logits.amax(dim=1, keepdim=True)).exp_()
        gradient.div_(gradient.sum(dim=1, keepdim=True))
        gradient.scatter_add_(1, labels.unsqueeze(1), gradient.new_full((), -1.0).expand(len(labels), 1))
        ctx.save_for_backward(gradient.mul_(count / len(labels)))
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0], None, None


def _with_offsets(logits: object, offsets: Tensor) -> Tensor:
    """Logits (n B, classes) plus the offsets of every device, (n, classes)."""
    if not isinstance(logits, Tensor) or logits.shape[1:] != offsets.shape[1:]:
        raise ScenarioError(
            "learning.local_loss", "logit-adjusted", f"needs a logit for each of {offsets.shape[1]} classes"
        )
    return (unfolded(logits, 0, len(offsets)) + offsets.to(logits).unsqueeze(1)).flatten(0, 1)
