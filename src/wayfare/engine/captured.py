"""Captured graphs, which several runs of one process may share."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

from wayfare.engine.base import LocalTraining
from wayfare.learning.tasks import Task


def captured(training: LocalTraining, task: Task, *others: Hashable) -> Hashable:
    """Everything that captured graphs hold. Tensors count by identity, so equal data must be shared too."""
    offsets = training.local_loss.offsets
    key = (
        *others,
        *(training.compute, training.batches.batch_size, training.batches.augment, training.descent),
        *(None if offsets is None else offsets.shape[1:], type(task)),
        *(tuple(getattr(task, entry.name) for entry in fields(task)) if is_dataclass(task) else (task,)),
    )
    try:
        hash(key)
    except TypeError:
        # A task with values that cannot be compared shares nothing.
        return object()
    return key


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python collect no garbage meanwhile.

    Garbage may hold graphs of an earlier run. If a thread destroys one while it captures another, the capture fails.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
