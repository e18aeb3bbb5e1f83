"""Local losses that limit the drift of devices with different data.

Logit adjustment (Menon et al. 2021; for federated learning Zhang et al. 2022): a device with few samples of a class
learns to suppress it. Adding the logarithm of the class shares to the logits during training accounts for the shares,
so that the network learns to distinguish the classes. Evaluation does not use this term.

The proximal term of FedProx (Li et al. 2020) is part of the step: `pull` in `learning/descent.py`.
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
    """How the loss of a local step differs from the task's loss; by default, not at all."""

    offsets: Tensor | None = None  # tau log(share), added to the logits, (devices, classes)


def make_local_loss(learning: Learning, task: Task, held: Sequence[Ints], device: torch.device) -> LocalLoss:
    """The local loss of a scenario, with the class shares of its devices."""
    match learning.local_loss:
        case "plain" | "prox":
            return LocalLoss()
        case "logit-adjusted":
            labels, classes = _labels(task)
            return loss_by_counts(learning, class_counts(labels, classes, list(held)), device)


def loss_by_counts(learning: Learning, counts: Ints, device: torch.device) -> LocalLoss:
    """Logit adjustment from the number of samples of every device and class."""
    offsets = learning.logit_strength * np.log(class_shares(counts, learning.logit_smoothing))
    return LocalLoss(offsets=torch.from_numpy(offsets.astype(np.float32)).to(device))


def class_shares(counts: Ints, smoothing: float) -> Floats:
    """(1 - a) n_c / n + a / C for every device and class: smoothed class shares, never 0."""
    return np.asarray((1 - smoothing) * counts / counts.sum(axis=1, keepdims=True) + smoothing / counts.shape[1])


def loss_of(task: Task, module: nn.Module, samples: Tensor, crops: Tensor | None, offset: Tensor | None) -> Tensor:
    """The loss of a task on some samples, with an optional offset (classes,) added to the logits."""
    return task.loss(module if offset is None else _Adjusted(module, offset), samples, crops)


class _Adjusted(nn.Module):
    """A network with an offset per class added to its logits."""

    def __init__(self, module: nn.Module, offset: Tensor) -> None:
        super().__init__()
        self.module, self.offset = module, offset

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.module(inputs)
        if logits.shape[1:] != self.offset.shape:
            shape = " x ".join(map(str, logits.shape[1:])) or "one number"
            rule = f"needs a logit for each of {len(self.offset)} classes; the network returns {shape} per sample"
            raise ScenarioError("learning.local_loss", "logit-adjusted", rule)
        return logits + self.offset


def _labels(task: Task) -> tuple[Ints, int]:
    """The class of every training sample, and the number of classes."""
    if isinstance(task, Labelled):
        return task.class_of_samples(), task.classes
    labels: Ints | None = getattr(task, "labels", None)
    if labels is None:
        rule = f"needs classes, but the samples of {task.name} have none; use plain or prox"
        raise ScenarioError("learning.local_loss", "logit-adjusted", rule)
    return labels, int(labels.max()) + 1
