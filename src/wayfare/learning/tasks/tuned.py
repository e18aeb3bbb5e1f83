"""Classification by the last blocks of a backbone, on cached activations or on images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from wayfare.arrays import Ints
from wayfare.learning.models.base import Model
from wayfare.learning.tasks.base import ACCURACY, Classification, Evaluation, Metric, placed_fields

_EVALUATED_AT_ONCE, _EVALUATED_AT_ONCE_CPU = 1000, 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TunedClassification:
    """Samples in the form in which they are stored, which ``prepare`` turns into inputs of the network."""

    name: str
    model: Model
    classes: int
    class_names: tuple[str, ...]
    train_stored: Tensor
    train_labels: Tensor
    test_stored: Tensor
    test_labels: Tensor
    prepare: Callable[[Tensor], Tensor]
    on_features: Callable[[], Classification]  # the same samples as features of the frozen backbone
    train_features: Tensor | None = None  # those features, for a method that also sums them
    metric: Metric = ACCURACY

    def class_of_samples(self) -> Ints:
        labels: Ints = self.train_labels.cpu().numpy()
        return labels

    def inputs(self, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """Training inputs; this task has no augmentation."""
        return self.prepare(self.train_stored.index_select(0, samples))

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        inputs, labels = self.minibatch(samples, next(module.parameters()).dtype)
        return self.loss_on(module(inputs), labels)

    def minibatch(self, samples: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
        """Some training inputs, with real numbers of a type, and their labels."""
        return self.inputs(samples).to(real), self.train_labels.index_select(0, samples)

    @property
    def loss_of(self) -> Callable[[Tensor, Tensor], Tensor]:
        return nn.functional.cross_entropy

    def loss_on(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss_of(outputs, labels)

    @property
    def averages(self) -> bool:
        """The loss on several minibatches of one size is the mean of their losses."""
        return True

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Accuracy and mean cross-entropy, computed in batches that fit the memory."""
        judged = list(self._judged(module))
        count = len(self.test_labels)
        right = sum((logits.argmax(dim=1) == labels).sum() for logits, labels in judged)
        loss = sum(nn.functional.cross_entropy(logits, labels, reduction="sum").double() for logits, labels in judged)
        return Evaluation(score=float(right) / count, loss=float(loss) / count)

    def _judged(self, module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of the test set, batch by batch."""
        at_once = _EVALUATED_AT_ONCE_CPU if self.test_labels.device.type == "cpu" else _EVALUATED_AT_ONCE
        for stored, labels in zip(self.test_stored.split(at_once), self.test_labels.split(at_once), strict=True):
            yield module(self.prepare(stored).to(next(module.parameters()).dtype)), labels

    @property
    def test_classes(self) -> Ints:
        labels: Ints = self.test_labels.cpu().numpy()
        return labels

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The accuracy on parts of the test set."""
        right = torch.cat([logits.argmax(dim=1) == labels for logits, labels in self._judged(module)]).double()
        return [float(right[part].mean()) for part in parts]

    def to(self, device: torch.device) -> Self:
        names = ["train_stored", "train_labels", "test_stored", "test_labels"]
        names += [] if self.train_features is None else ["train_features"]
        return replace(self, **placed_fields(self, names, device))


def from_activations(stored: Tensor) -> Tensor:
    """Cached activations as a network takes them. Images are stored with their channels last.

    That is the fastest order on a CPU. On a GPU it would select slow kernels for the gradients of depthwise
    convolutions.
    """
    values = stored.float()
    if values.ndim != 4:
        return values
    images = values.permute(0, 3, 1, 2)
    return images.contiguous() if images.is_cuda else images
