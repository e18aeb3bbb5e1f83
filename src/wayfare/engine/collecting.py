"""The engine of class statistics: a device adds its own statistics once, in the first round, and may then train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wayfare.engine.base import Burst, Engine, LocalTraining, Overlapping, Ready
from wayfare.learning.sums import SumsModel, collect, vectors_of


class Collecting(Engine):
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
                self._layout.check_range(sums)

    def _collected(self, device: int) -> Tensor:
        training = self._training
        inputs, labels, _ = vectors_of(training.task, training.task.name)
        samples = torch.from_numpy(training.batches.held(device)).to(inputs.device)
        with training.compute.numerics():
            return collect(inputs.index_select(0, samples), labels.index_select(0, samples), self._layout)


class Training(Collecting):
    """Also trains the entries after the sums."""

    def __init__(self, training: LocalTraining, trains: Engine) -> None:
        super().__init__(training)
        self._trains, self.ahead_steps = trains, trains.ahead_steps

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        super().run(models, bursts)
        self._trains.run(*self._after_sums(models, bursts))

    def _after_sums(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> tuple[list[Tensor], list[Burst]]:
        """Views of the entries after the sums, and their bursts."""
        return [self._trained(model) for model in models], [self._alone(burst) for burst in bursts]

    def _trained(self, vector: Tensor) -> Tensor:
        return vector[self._layout.entries :]

    def _alone(self, burst: Burst) -> Burst:
        vectors = burst.received, burst.correction, burst.velocity
        received, correction, velocity = (None if each is None else self._trained(each) for each in vectors)
        return replace(burst, received=received, correction=correction, velocity=velocity)


class TrainingBesideContacts(Training, Overlapping):
    """Also lets bursts overlap with contacts, as the engine that trains does."""

    _trains: Overlapping

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        Collecting.run(self, models, bursts)
        return self._trains.launch(*self._after_sums(models, bursts), after, stays)


def collecting(training: LocalTraining, trains: Engine | None) -> Engine:
    """The engine of class statistics; ``trains`` is that of the entries after the sums, None if there are none."""
    if trains is None:
        return Collecting(training)
    return (TrainingBesideContacts if isinstance(trains, Overlapping) else Training)(training, trains)
