"""A task: data, a model, a loss and a metric."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from wayfare.arrays import Ints
from wayfare.learning.models.base import Model
from wayfare.sharing import is_sharing, shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The name and direction of a score."""

    name: str  # a column name, with the unit
    better: Literal["higher", "lower"]
    percent: bool = False  # a share, displayed in per cent

    @property
    def scale(self) -> float:
        """The factor from a score to its displayed value."""
        return 100.0 if self.percent else 1.0

    def text(self, score: float, digits: int = 1) -> str:
        return f"{100 * score:.{digits}f} %" if self.percent else f"{score:.{digits + 2}f}"

    def with_interval(self, score: float, half_width: float | None, digits: int, sign: str = "") -> str:
        """A score or difference as displayed, without the unit, with half its interval if it has one."""
        interval = "" if half_width is None else f" ± {self.scale * half_width:.{digits}f}"
        return f"{self.scale * score:{sign}.{digits}f}{interval}"


ACCURACY = Metric(name="accuracy", better="higher", percent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of a model on the test set: the score, the mean loss, and other metrics."""

    score: float
    loss: float
    others: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """A learning task. A sample is identified by its number in the training set."""

    @property
    def name(self) -> str:
        """The name in scenarios."""

    @property
    def model(self) -> Model:
        """The network to train."""

    @property
    def metric(self) -> Metric:
        """The metric of the score that `evaluate` returns."""

    @property
    def classes(self) -> int:
        """The number of classes that a partition distinguishes."""

    def class_of_samples(self) -> Ints:
        """The class of every training sample."""

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """The differentiable mean loss of a module on some training samples.

        ``crops`` (n, 3) is the augmentation of each sample: shift in pixels right and down, and 1 to mirror it.
        """

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Evaluate a module on the test set; the module is in evaluation mode."""

    def to(self, device: torch.device) -> Self:
        """The same task with its data on a device."""


@runtime_checkable
class Labelled(Task, Protocol):
    """A task whose loss is exactly the mean cross-entropy of logits, so that engines may compute it themselves."""

    @property
    def train_labels(self) -> Tensor:
        """The class of every training sample."""

    def inputs(self, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """Training inputs in the form that the model expects."""


def placed(data: Tensor, device: torch.device) -> Tensor:
    """Data on a device. Runs in one process share one copy of equal data on a GPU."""
    if device.type == "cpu" or data.device.type != "cpu" or not is_sharing():
        return data.to(device)
    content = hashlib.sha256(data.contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()
    return shared("data", (device, data.dtype, data.shape, data.stride(), content), lambda: data.to(device))


def placed_fields(task: Task, names: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Some fields of a task, as data on a device."""
    return {name: placed(getattr(task, name), device) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Classification with cross-entropy: inputs of one shape as float32, labels as int64."""

    name: str
    model: Model
    classes: int
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    metric: Metric = ACCURACY

    def class_of_samples(self) -> Ints:
        labels: Ints = self.train_labels.cpu().numpy()
        return labels

    def inputs(self, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """Training inputs; this task has no augmentation."""
        return self.train_inputs.index_select(0, samples)

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        inputs = self.inputs(samples, crops).to(next(module.parameters()).dtype)
        return nn.functional.cross_entropy(module(inputs), self.train_labels.index_select(0, samples))

    def evaluate(self, module: nn.Module) -> Evaluation:
        logits = module(self.test_inputs)
        right = (logits.argmax(dim=1) == self.test_labels).double().mean()
        # Both leave a GPU in one transfer.
        score, loss = torch.stack([right, nn.functional.cross_entropy(logits, self.test_labels).double()]).tolist()
        return Evaluation(score=score, loss=loss)

    @property
    def test_classes(self) -> Ints:
        labels: Ints = self.test_labels.cpu().numpy()
        return labels

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The accuracy on parts of the test set."""
        right = (module(self.test_inputs).argmax(dim=1) == self.test_labels).double()
        return [float(right[part].mean()) for part in parts]

    def to(self, device: torch.device) -> Self:
        names = ("train_inputs", "train_labels", "test_inputs", "test_labels")
        return replace(self, **placed_fields(self, names, device))
