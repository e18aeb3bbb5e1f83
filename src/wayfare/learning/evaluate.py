"""Evaluation of a global model on the test set."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from wayfare.learning.chance import seeded_generators
from wayfare.learning.device_scores import DeviceScores
from wayfare.learning.models.base import load_vector
from wayfare.learning.models.fused import fuse
from wayfare.learning.models.layout import fastest_layout
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks import Evaluation, Task


class Evaluator:
    """Evaluates by the module of the task, or by ``module``, which must have the same parameters and outputs."""

    def __init__(self, task: Task, devices: DeviceScores | None = None, module: nn.Module | None = None) -> None:
        module = (module or task.model.module()).eval()
        self._task, self._devices, self._module = task, devices, fuse(module) if _is_ours(task) else module

    @torch.no_grad()
    def __call__(self, model: Tensor) -> Evaluation:
        self._module.to(memory_format=fastest_layout(self._task.model, model.device))  # type: ignore[call-overload]
        load_vector(self._module.to(model.device), model)
        for name, buffer in self._module.named_buffers():
            if name.endswith("running_var"):
                # Summed updates may leave a variance slightly below 0.
                buffer.clamp_(min=0)
        with seeded_generators(model.device) as set_seed:
            # If a network draws random numbers even here, the same model still gets the same score.
            set_seed(0)
            found = self._task.evaluate(self._module)
            if self._devices is None:
                return found
            set_seed(0)
            return replace(found, others=found.others | self._devices(self._module))


def _is_ours(task: Task) -> bool:
    """A user's own network is evaluated as it is."""
    return isinstance(task.model, Resnet9)
