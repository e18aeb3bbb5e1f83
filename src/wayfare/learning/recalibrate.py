"""Statistics of batch normalisation that belong to the model that is judged.

A server that averages models averages their running variances. By the law of total variance, with n the device,

    Var(x) = E[Var(x | n)] + Var(E[x | n]),

that mean lacks the second term: how far the devices' means lie apart. A mean of models over rounds has statistics that
belong to none of them. Both are mended by estimating the statistics of the judged model again from unlabelled samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wayfare.arrays import Ints
from wayfare.errors import ScenarioError
from wayfare.learning.chance import chance_of_ones_own
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.learning.tasks.base import Task
from wayfare.scenario.model import Learning
from wayfare.streams import FLEET, Stream, generator

_FIELD = "learning.recalibrate_statistics"


def draw_samples(count: int, held: Sequence[Ints], seed: int) -> Ints:
    """Different training samples out of all that the fleet holds; a larger count begins with the same ones."""
    pool = np.unique(np.concatenate(held))
    if count > len(pool):
        raise ScenarioError(_FIELD, count, f"must not exceed the {len(pool)} training samples that the fleet holds")
    return generator(seed, Stream.RECALIBRATION, FLEET).permutation(pool)[:count]


def make_recalibration(
    learning: Learning, task: Task, held: Sequence[Ints], seed: int, device: torch.device
) -> Recalibration | None:
    if not learning.recalibrate_statistics:
        return None
    samples = draw_samples(learning.recalibrate_statistics, held, seed)
    return Recalibration(task, torch.from_numpy(samples).to(device))


class Recalibration:
    """Gives flat models the mean and the variance that every batch normalisation sees on some training samples.

    All samples pass in one batch, so the moments are those of the whole, and every layer sees what the layers before it
    make of their new statistics. The network stays in evaluation mode: dropout is off, and momentum does not matter.
    """

    def __init__(self, task: Task, samples: Tensor) -> None:
        self._task, self._samples, self._module = task, samples, task.model.module().eval()
        self._seen: set[nn.Module] = set()
        layers = [
            layer
            for layer in self._module.modules()
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None
        ]
        if not layers:
            rule = f"needs batch normalisation, and the network of {task.name} has none; leave it out, or set it to 0"
            raise ScenarioError(_FIELD, len(samples), rule)
        for layer in layers:
            layer.register_forward_pre_hook(self._measure)

    @torch.no_grad()
    def __call__(self, model: Tensor) -> Tensor:
        """The same parameters with new statistics, as a vector of its own."""
        if model.device.type == "cpu":
            # As in an evaluation: the fastest layout for a convolution on a CPU.
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        load_vector(self._module.to(model.device), model)
        self._seen.clear()
        with chance_of_ones_own(model.device) as set_seed:
            set_seed(0)
            # Every task can pass training samples through a network this way. Labels only enter the loss, which is
            # dropped.
            self._task.loss(self._module, self._samples)
        return read_vector(self._module).to(model)

    def _measure(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Set the statistics of a layer from the signal that it is about to normalise."""
        if layer in self._seen:
            rule = f"the network of {self._task.name} uses one batch normalisation in two places; give each its own"
            raise ScenarioError(_FIELD, len(self._samples), rule)
        self._seen.add(layer)
        running_mean, running_var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        # In the type of the statistics: moments of a bfloat16 signal would come out as bfloat16. The variance is the
        # unbiased one, as in PyTorch's own running variance.
        signal = inputs[0].to(running_mean.dtype)
        variance, mean = torch.var_mean(signal, dim=(0, *range(2, signal.ndim)), correction=1)
        running_mean.copy_(mean)
        running_var.copy_(variance)
