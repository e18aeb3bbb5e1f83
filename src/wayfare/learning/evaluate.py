"""How good a global model is."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.learning.chance import chance_of_ones_own
from wayfare.learning.models.base import load_vector
from wayfare.learning.tasks import Evaluation, Task


class Evaluator:
    def __init__(self, task: Task) -> None:
        self._task, self._module = task, task.model.module().eval()

    @torch.no_grad()
    def __call__(self, model: Tensor) -> Evaluation:
        if model.device.type == "cpu":
            # As a processor convolves fastest.
            self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        load_vector(self._module.to(model.device), model)
        for name, buffer in self._module.named_buffers():
            if name.endswith("running_var"):
                # A sum of differences may leave a variance a little below 0.
                buffer.clamp_(min=0)
        with chance_of_ones_own(model.device) as set_seed:
            # Should a network draw random numbers even here, the same model still has the same score.
            set_seed(0)
            return self._task.evaluate(self._module)
