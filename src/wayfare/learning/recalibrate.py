"""New batch normalisation statistics for the evaluated model.

A server that averages models also averages their running variances. By the law of total variance, with n the device,

    Var(x) = E[Var(x | n)] + Var(E[x | n]),

this average lacks the second term, the variance between devices. Likewise, the statistics of a model that is averaged
over rounds fit none of the averaged models. Estimating the statistics again from unlabelled samples fixes both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wayfare.arrays import Ints
from wayfare.errors import ScenarioError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.learning.models.layout import fastest_layout
from wayfare.learning.tasks.base import Task
from wayfare.scenario.model import Learning
from wayfare.streams import FLEET, Stream, generator

_FIELD = "learning.recalibrate_statistics"


def draw_samples(count: int, held: Sequence[Ints], seed: int) -> Ints:
    """Distinct training samples of the fleet; a larger count starts with the same samples."""
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
    """Sets the statistics of every batch normalisation in a flat model from some training samples.

    All samples pass in one batch, so the moments are exact, and every layer sees inputs that were normalised with the
    new statistics of earlier layers. The network stays in evaluation mode: dropout is off, and momentum has no effect.
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
            rule = f"needs batch normalisation, but the network of {task.name} has none; set it to 0"
            raise ScenarioError(_FIELD, len(samples), rule)
        for layer in layers:
            layer.register_forward_pre_hook(self._measure)

    @torch.no_grad()
    def __call__(self, model: Tensor) -> Tensor:
        """A new vector with the same parameters and new statistics."""
        # As in an evaluation.
        self._module.to(memory_format=fastest_layout(self._task.model, model.device))  # type: ignore[call-overload]
        load_vector(self._module.to(model.device), model)
        self._seen.clear()
        with seeded_generators(model.device) as set_seed:
            set_seed(0)
            # Every task can pass training samples through a network like this. Labels affect only the loss, which is
            # discarded.
            self._task.loss(self._module, self._samples)
        return read_vector(self._module).to(model)

    def _measure(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Set the statistics of a layer from the signal that it is about to normalise."""
        if layer in self._seen:
            rule = f"the network of {self._task.name} uses a batch normalisation layer twice; use separate layers"
            raise ScenarioError(_FIELD, len(self._samples), rule)
        self._seen.add(layer)
        running_mean, running_var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        # Compute in the type of the statistics; moments of a bfloat16 signal would be bfloat16. The variance is
        # unbiased, like PyTorch's running variance.
        signal = inputs[0].to(running_mean.dtype)
        variance, mean = torch.var_mean(signal, dim=(0, *range(2, signal.ndim)), correction=1)
        running_mean.copy_(mean)
        running_var.copy_(variance)
