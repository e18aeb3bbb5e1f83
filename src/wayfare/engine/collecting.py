"""The engine of class statistics: a device adds its own statistics once, in the first round, and may then train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from wayfare.engine.base import Burst, Engine, LocalTraining, Overlapping, Ready
from wayfare.learning.sums import SumsModel, collect, vectors_of


class Collecting(Engine):
    """Adds the statistics of its samples to the local vector, so that received - local is what a device has to send."""

    def __init__(self, training: LocalTraining) -> None:
        model = training.task.model
        assert isinstance(model, SumsModel)
        self._local, self._layout = training, model.layout

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        for model, burst in zip(models, bursts, strict=True):
            if burst.first_round == 1:
                sums = model[: self._layout.entries]
                sums += self._collected(burst.device)
                self._layout.check_range(sums)

    def _collected(self, device: int) -> Tensor:
        with self._local.compute.numerics():
            return collect(*self._samples(device), self._layout)

    def _samples(self, device: int) -> tuple[Tensor, Tensor]:
        """The vectors of a device and their classes."""
        inputs, labels, _ = vectors_of(self._local.task, self._local.task.name)
        samples = torch.from_numpy(self._local.batches.held(device)).to(inputs.device)
        return inputs.index_select(0, samples), labels.index_select(0, samples)


class Training(Collecting):
    """Also trains the entries after the sums, on devices that have delivered their statistics.

    Before that a device sends nothing that it learns. Its updates would pile up, all from the classifier of the few
    statistics that it has received, and arrive together when the classifier is another one.
    """

    def __init__(self, training: LocalTraining, trains: Engine) -> None:
        super().__init__(training)
        self._trains, self.ahead_steps = trains, trains.ahead_steps
        self._sends_statistics = cache(self._has_statistics)

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        super().run(models, bursts)
        chosen = self._training(bursts)
        if chosen:
            self._trains.run(*self._after_sums(models, bursts, chosen))

    def _training(self, bursts: Sequence[Burst]) -> list[int]:
        """Which bursts train. A device without enough samples for statistics has nothing to wait for."""
        return [
            index for index, burst in enumerate(bursts) if not (burst.waits and self._sends_statistics(burst.device))
        ]

    def _has_statistics(self, device: int) -> bool:
        _, labels = self._samples(device)
        return bool((labels.bincount() >= self._layout.collection.min_count).any())

    def _after_sums(
        self, models: Sequence[Tensor], bursts: Sequence[Burst], chosen: Sequence[int]
    ) -> tuple[list[Tensor], list[Burst]]:
        """Views of the entries after the sums, and their bursts."""
        return [self._trained(models[index]) for index in chosen], [self._alone(bursts[index]) for index in chosen]

    def _trained(self, vector: Tensor) -> Tensor:
        return vector[self._layout.entries :]

    def _alone(self, burst: Burst) -> Burst:
        vectors = burst.received, burst.correction, burst.velocity
        received, correction, velocity = (None if each is None else self._trained(each) for each in vectors)
        return replace(burst, received=received, correction=correction, velocity=velocity)


class _Ended:
    """The end of a burst that did not train."""

    def wait(self) -> None: ...

    def query(self) -> bool:
        return True


_ENDED = _Ended()


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
        ends: list[Ready] = [each or _ENDED for each in after]
        if chosen := self._training(bursts):
            before, still = [after[index] for index in chosen], [stays[index] for index in chosen] if stays else ()
            launched = self._trains.launch(*self._after_sums(models, bursts, chosen), before, still)
            for index, end in zip(chosen, launched, strict=True):
                ends[index] = end
        return ends


def collecting(training: LocalTraining, trains: Engine | None) -> Engine:
    """The engine of class statistics; ``trains`` is that of the entries after the sums, None if there are none."""
    if trains is None:
        return Collecting(training)
    return (TrainingBesideContacts if isinstance(trains, Overlapping) else Training)(training, trains)
