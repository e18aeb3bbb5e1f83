"""The engine of class statistics: a device adds its own statistics once, in the first round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wayfare.codec.whole import MAX_WHOLE
from wayfare.engine.base import Burst, LocalTraining
from wayfare.errors import InvariantError
from wayfare.learning.sums import SumsModel, collect, vectors_of


class Collecting:
    """Adds the statistics of its samples to the local vector, so that received - local is what a device has to send."""

    def __init__(self, training: LocalTraining) -> None:
        model = training.task.model
        assert isinstance(model, SumsModel)
        self._training, self._layout = training, model.layout

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        for model, burst in zip(models, bursts, strict=True):
            if burst.first_round == 1:
                sums = model[: self._layout.entries]
                sums += self._collected(burst.device)
                if float(sums.abs().max()) >= MAX_WHOLE:
                    raise InvariantError(f"a sum reached {MAX_WHOLE} steps and is no longer exact")

    def _collected(self, device: int) -> Tensor:
        training = self._training
        inputs, labels, _ = vectors_of(training.task, training.task.name)
        samples = torch.from_numpy(training.batches.held(device)).to(inputs.device)
        with training.compute.numerics():
            return collect(inputs.index_select(0, samples), labels.index_select(0, samples), self._layout)
