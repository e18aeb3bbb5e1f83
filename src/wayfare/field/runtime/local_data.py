"""Training of one device on what lies in its own folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.engine import Burst, Compute, Engine, LocalTraining
from wayfare.engine.reference import Reference
from wayfare.errors import ScenarioError
from wayfare.field.runtime.local_folder import RESCAN_S, LocalFolder
from wayfare.field.runtime.work import Work
from wayfare.learning.batches import GrowingBatches
from wayfare.learning.descent import descent_of
from wayfare.learning.local_loss import LocalLoss, loss_by_counts
from wayfare.learning.models.base import load_vector
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import local_task_of
from wayfare.learning.tasks.local import FolderTask

_log = logging.getLogger("wayfare.field")


def no_settings() -> Mapping[str, Any]:
    """The default: nothing was changed."""
    return {}


class LocalData(Engine):
    """An engine for one device. New files count from the next burst on."""

    def __init__(
        self,
        work: Work,
        folder: Path,
        cache: Path,
        *,
        device: int,
        compute: Compute,
        rescan_s: float = RESCAN_S,
        clock: Callable[[], float] = time.monotonic,
        settings: Callable[[], Mapping[str, Any]] = no_settings,
    ) -> None:
        """``settings`` are fields of `Settings` that the operator has changed; they hold from the next burst on."""
        learning, task = work.scenario.learning, local_task_of(work.scenario.learning)
        if learning.augment:
            raise ScenarioError("learning.augment", True, "not for a task of your own; augment in its `load`")
        if learning.local_loss == "logit-adjusted" and not task.wanted.classes:
            rule = f"needs classes, but the task {task.name} has none; use plain or prox"
            raise ScenarioError("learning.local_loss", learning.local_loss, rule)
        self._work, self._number, self._compute = work, device, compute
        self._folder = LocalFolder(task, folder, cache, rescan_s=rescan_s, clock=clock)
        self._samples = self._folder.samples
        self.task = FolderTask(task=task, samples=self._samples, device=compute.device)
        self._engine: Reference | None = None
        self._settings, self._in_use = settings, settings()
        self._loss: float | None = None

    def samples(self) -> int:
        return len(self._samples)

    def loss(self) -> float | None:
        """The loss of the local model on a minibatch after the last burst; None before, or if it is not finite."""
        return self._loss

    def ready(self) -> bool:
        """Look for new files if it is time; whether there is anything to train on."""
        if self._folder.has_changed():
            self._engine = None
        return len(self._samples) > 0

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        """Train on the compute device, and copy the results back."""
        if self._settings() != self._in_use:
            self._in_use, self._engine = self._settings(), None
        if self._engine is None:
            self._engine = Reference(self._training())
        where = self._compute.device
        vectors = [model.to(where) for model in models]
        moved = [_moved(burst, where) for burst in bursts]
        self._engine.run(vectors, moved)
        self._loss = self._loss_of(vectors[-1], bursts[-1])
        for model, vector, burst, there in zip(models, vectors, bursts, moved, strict=True):
            if vector is not model:
                model.copy_(vector)
            if burst.velocity is not None and there.velocity is not None and there.velocity is not burst.velocity:
                burst.velocity.copy_(there.velocity)

    def _loss_of(self, vector: Tensor, burst: Burst) -> float | None:
        """The loss on the minibatch after a burst, which it has not been trained on as such."""
        module = self.task.model.module().to(vector).eval()
        load_vector(module, vector)
        samples = torch.from_numpy(self._batches.of(0, burst.first_round + burst.rounds, 1)[0])
        with torch.no_grad():
            loss = float(self.task.loss(module, samples.to(vector.device), None))
        return loss if math.isfinite(loss) else None

    def _training(self) -> LocalTraining:
        scenario = self._work.scenario
        learning = scenario.learning
        local_loss = LocalLoss()
        if learning.local_loss == "logit-adjusted":
            counts = np.bincount(self.task.class_of_samples(), minlength=self.task.classes)
            local_loss = loss_by_counts(learning, counts[None], self._compute.device)
        batch_size = self._in_use.get("batch_size", learning.batch_size)
        learning_rate = self._in_use.get("learning_rate", learning.learning_rate)
        _log.info("training", extra={"learning_rate": learning_rate, "batch_size": batch_size})
        self._batches = GrowingBatches(len(self._samples), batch_size, self._work.seed, self._number)
        return LocalTraining(
            task=self.task,
            batches=self._batches,
            learning_rate=learning_rate,
            compute=self._compute,
            schedule=Schedule(learning.schedule, scenario.rounds),
            local_loss=local_loss,
            descent=descent_of(learning, self._work.method.local),
        )


def _moved(burst: Burst, where: torch.device) -> Burst:
    """The burst on the compute device, where this device is the only one."""

    def there(vector: Tensor | None) -> Tensor | None:
        return None if vector is None else vector.to(where)

    return replace(
        burst,
        device=0,
        received=there(burst.received),
        correction=there(burst.correction),
        velocity=there(burst.velocity),
    )
