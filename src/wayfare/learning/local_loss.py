"""A loss that holds back the drift of devices that train alone on data of their own.

Logit adjustment (Menon et al. 2021; for federated learning Zhang et al. 2022): a device that holds little of a class
learns to deny it. With the log of its class shares added to the logits the shares are explained already, and what is
learned is what tells classes apart. The model that is judged has no such term.

The proximal term of FedProx (Li et al. 2020) is a part of the step: `pull` in `learning/descent.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Floats, Ints
from wayfare.errors import ScenarioError
from wayfare.learning.partition import class_counts
from wayfare.learning.tasks.base import Labelled, Task
from wayfare.scenario.model import Learning


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLoss:
    """How the loss of a local step differs from the task's own; by default not at all."""

    offsets: Tensor | None = None  # tau log(share), added to the logits, (devices, classes)


def make_local_loss(learning: Learning, task: Task, held: Sequence[Ints], device: torch.device) -> LocalLoss:
    """The local loss of a scenario, with the class shares of its devices."""
    match learning.local_loss:
        case "plain" | "prox":
            return LocalLoss()
        case "logit-adjusted":
            labels, classes = _labels(task)
            shares = class_shares(class_counts(labels, classes, list(held)), learning.logit_smoothing)
            offsets = learning.logit_strength * np.log(shares)
            return LocalLoss(offsets=torch.from_numpy(offsets.astype(np.float32)).to(device))


def class_shares(counts: Ints, smoothing: float) -> Floats:
    """(1 - a) n_c / n + a / C for every device and class: what a device holds of a class, never nothing."""
    return np.asarray((1 - smoothing) * counts / counts.sum(axis=1, keepdims=True) + smoothing / counts.shape[1])


def loss_of(task: Task, module: nn.Module, samples: Tensor, crops: Tensor | None, offset: Tensor | None) -> Tensor:
    """The loss of a task on some samples, with an offset (classes,) added to the logits if there is one."""
    return task.loss(module if offset is None else _Adjusted(module, offset), samples, crops)


class _Adjusted(nn.Module):
    """A network whose logits are moved by an offset for each class."""

    def __init__(self, module: nn.Module, offset: Tensor) -> None:
        super().__init__()
        self.module, self.offset = module, offset

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.module(inputs)
        if logits.shape[1:] != self.offset.shape:
            shape = " x ".join(map(str, logits.shape[1:])) or "one number"
            rule = f"needs a logit for each of {len(self.offset)} classes, and the network gives {shape} for a sample"
            raise ScenarioError("learning.local_loss", "logit-adjusted", rule)
        return logits + self.offset


def _labels(task: Task) -> tuple[Ints, int]:
    """The class of every training sample, and how many classes there are."""
    if isinstance(task, Labelled):
        return task.class_of_samples(), task.classes
    labels: Ints | None = getattr(task, "labels", None)
    if labels is None:
        rule = f"needs classes, and the samples of {task.name} have none; plain and prox do without"
        raise ScenarioError("learning.local_loss", "logit-adjusted", rule)
    return labels, int(labels.max()) + 1
