"""A trial of a task and its settings on a folder of data, before a device gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from wayfare.engine import Burst, Compute
from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.local_data import LocalData
from wayfare.field.runtime.work import Work
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.tasks import Evaluation, local_task_of

_STEPS_AT_ONCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    task: str
    entries: int  # of the model
    samples: int
    classes: Mapping[str, int]  # samples of each class; empty if labels are not classes
    learning_rate: float
    batch_size: int
    steps: int
    metric: str
    before: Evaluation
    after: Evaluation

    blind_loss: float  # without looking at inputs: of the shares of the classes, or of the initial model

    @property
    def learned(self) -> bool:
        """Whether the model is better than one that ignores its inputs; NaN is not."""
        return self.after.loss < self.blind_loss


def try_folder(work: Work, folder: Path, *, steps: int, progress: Callable[[int, int], None]) -> Trial:
    """Take local steps from the initial model, as a device would, and judge them on the same data."""
    if work.method.local.collects() is not None:
        raise ScenarioError("scheme", work.scheme_name, "collects statistics and does not train")
    learning, task = work.scenario.learning, local_task_of(work.scenario.learning)
    with TemporaryDirectory() as cache:
        local = LocalData(work, folder, Path(cache, "data"), device=0, compute=Compute())
        if not local.samples():
            raise InputError(f"{folder}: has no samples for this task")
        judge = Evaluator(local.task)
        model = work.initial_model.clone()
        before, velocity = judge(model), torch.zeros_like(model) if work.method.local.momentum else None
        for done in range(0, steps, _STEPS_AT_ONCE):
            count = min(_STEPS_AT_ONCE, steps - done)
            local.run([model], [Burst(0, done + 1, count, received=work.initial_model, velocity=velocity)])
            progress(done + count, steps)
        after = judge(model)
        counts = np.bincount(local.task.class_of_samples(), minlength=task.wanted.classes)[: task.wanted.classes]
    shares = counts[counts > 0] / local.samples()
    by_shares = task.wanted.classes and task.loss_of is nn.functional.cross_entropy
    names = task.wanted.class_names or tuple(map(str, range(task.wanted.classes)))
    return Trial(
        task=task.name,
        entries=len(model),
        samples=local.samples(),
        classes=dict(zip(names, map(int, counts), strict=True)),
        learning_rate=learning.learning_rate,
        batch_size=learning.batch_size,
        steps=steps,
        metric=task.metric.name,
        before=before,
        after=after,
        blind_loss=min(before.loss, float(-(shares * np.log(shares)).sum())) if by_shares else before.loss,
    )
