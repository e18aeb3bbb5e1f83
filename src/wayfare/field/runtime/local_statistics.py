"""Class statistics of what lies in a device's own folder.

Statistics of a folder are whole numbers. When the folder changes, the device adds the difference to what it has added
before, so the sums at the server are those of all folders as they are. The store keeps what was added, with the local
vector, so nothing is added twice after a restart.

Samples of a class count in groups of the method's minimum count, in the order of files. A difference is then that of a
whole group: with single samples, the sums before and after one would reveal it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.engine import Burst, Engine
from wayfare.field.runtime.local_folder import RESCAN_S, LocalFolder
from wayfare.field.runtime.work import Work
from wayfare.learning.sums import SumsModel, collect

_log = logging.getLogger("wayfare.field")


class LocalStatistics(Engine):
    """An engine for one device whose method collects statistics."""

    def __init__(
        self,
        work: Work,
        folder: Path,
        cache: Path,
        *,
        learned: Callable[[], Floats | None],
        rescan_s: float = RESCAN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``learned`` is everything that the store has added so far, with the sign of an update."""
        model, task = work.model, work.local_task
        assert isinstance(model, SumsModel)
        assert task is not None
        self._layout, self._form, self._learned = model.layout, task.form, learned
        self._folder = LocalFolder(task, folder, cache, rescan_s=rescan_s, clock=clock)
        self._found = self._collected()

    def samples(self) -> int:
        return len(self._folder.samples)

    def loss(self) -> None:
        """Nothing is trained."""

    def ready(self) -> bool:
        """Look for new files if it is time; whether there is a difference to add."""
        if self._folder.has_changed():
            self._found = self._collected()
        return bool(self._difference().any())

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        (model,) = models
        model += self._difference().to(model)
        self._layout.check_range(model)

    def _difference(self) -> Tensor:
        learned = self._learned()
        assert learned is not None
        return self._found.double() + torch.from_numpy(learned)

    def _collected(self) -> Tensor:
        samples = self._folder.samples
        if not len(samples):
            return torch.zeros(self._layout.entries)
        inputs, labels = samples.batch(np.arange(len(samples)))
        least = self._layout.collection.min_count
        used = in_groups(labels, least)
        if not len(used):
            extra = {"min_count": least, "samples": len(samples)}
            _log.warning("no class has min_count samples yet; the device sends no statistics", extra=extra)
        inputs, labels = inputs[used], labels[used]
        return collect(self._form.converted(self._form.arranged(inputs), torch.float32), labels, self._layout)


def in_groups(labels: Tensor, size: int) -> Tensor:
    """The indices of the first samples of each class, as many as whole groups of a size hold."""
    rows = [(labels == label).nonzero().view(-1) for label in labels.unique()]
    return torch.cat([some[: len(some) - len(some) % size] for some in rows]).sort().values
