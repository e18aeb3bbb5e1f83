"""The engine of class statistics: a device adds its own statistics once, in the first round, and may then train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wayfare.engine.base import Burst, Engine, LocalTraining
from wayfare.learning.sums import SumsModel, collect, vectors_of


class Collecting(Engine):
    """Adds the statistics of its samples to the local vector, so that received - local is what a device has to send."""

    def __init__(self, training: LocalTraining, trains: Engine | None) -> None:
        """``trains`` is the engine of the entries after the sums; None if there are none."""
        model = training.task.model
        assert isinstance(model, SumsModel)
        self._training, self._layout, self._trains = training, model.layout, trains

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        for model, burst in zip(models, bursts, strict=True):
            if burst.first_round == 1:
                sums = model[: self._layout.entries]
                sums += self._collected(burst.device)
                self._layout.check_range(sums)
        if self._trains is not None:
            self._trains.run([self._trained(model) for model in models], [self._alone(burst) for burst in bursts])

    def _trained(self, vector: Tensor) -> Tensor:
        """A view of the entries after the sums."""
        return vector[self._layout.entries :]

    def _alone(self, burst: Burst) -> Burst:
        vectors = burst.received, burst.correction, burst.velocity
        received, correction, velocity = (None if each is None else self._trained(each) for each in vectors)
        return replace(burst, received=received, correction=correction, velocity=velocity)

    def _collected(self, device: int) -> Tensor:
        training = self._training
        inputs, labels, _ = vectors_of(training.task, training.task.name)
        samples = torch.from_numpy(training.batches.held(device)).to(inputs.device)
        with training.compute.numerics():
            return collect(inputs.index_select(0, samples), labels.index_select(0, samples), self._layout)
