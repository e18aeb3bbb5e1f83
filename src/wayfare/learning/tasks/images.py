"""Classification of images that are stored as bytes: CIFAR-10, the paper's first workload, and Fashion-MNIST."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor, nn

from wayfare.arrays import Ints
from wayfare.learning.data import IMAGE_SETS, ImageArrays, load_images
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.layout import fastest_layout
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.base import ACCURACY, Evaluation, Metric, placed_fields
from wayfare.scenario.model import Learning

# Test images per batch: a wide network needs about a megabyte each. A CPU is fastest if they fit its cache
# (benchmarks/NOTES.md).
_EVALUATED_AT_ONCE, _EVALUATED_AT_ONCE_CPU = 1000, 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageClassification:
    """Images as (n, channels, height, width) bytes on the computing device, normalised per channel when used.

    Bytes need a quarter of the memory of float32, and images can be shifted and mirrored before normalisation.
    """

    name: str
    model: Model
    classes: int
    class_names: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: Tensor  # per channel, in units of a byte, (channels, 1, 1)
    deviation: Tensor
    flat: bool = False  # whether the model expects rows of pixels instead of images
    metric: Metric = ACCURACY

    def class_of_samples(self) -> Ints:
        labels: Ints = self.train_labels.cpu().numpy()
        return labels

    def inputs(self, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """Normalised training images, shifted and mirrored by ``crops`` if given."""
        images = self.train_images.index_select(0, samples)
        return self._normalised(images if crops is None else moved(images, crops))

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        inputs = self.inputs(samples, crops).to(next(module.parameters()).dtype)
        return nn.functional.cross_entropy(module(inputs), self.train_labels.index_select(0, samples))

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Accuracy and mean cross-entropy, computed in batches that fit the memory."""
        # Sums stay on the device, so that a GPU synchronises once and not for every batch.
        right = loss = torch.zeros((), dtype=torch.float64, device=self.test_labels.device)
        for logits, labels in self._judged(module):
            right = right + (logits.argmax(dim=1) == labels).sum()
            loss = loss + nn.functional.cross_entropy(logits, labels, reduction="sum")
        count, (rights, losses) = len(self.test_labels), torch.stack([right, loss]).tolist()
        return Evaluation(score=rights / count, loss=losses / count)

    def _judged(self, module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of the test set, batch by batch."""
        on_cpu = self.test_labels.device.type == "cpu"
        at_once = _EVALUATED_AT_ONCE_CPU if on_cpu else _EVALUATED_AT_ONCE
        for images, labels in zip(self.test_images.split(at_once), self.test_labels.split(at_once), strict=True):
            inputs = self._normalised(images)
            if not self.flat:
                inputs = inputs.contiguous(memory_format=fastest_layout(self.model, images.device))
            yield module(inputs), labels

    @property
    def test_classes(self) -> Ints:
        labels: Ints = self.test_labels.cpu().numpy()
        return labels

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The accuracy on parts of the test set."""
        right = torch.cat([logits.argmax(dim=1) == labels for logits, labels in self._judged(module)]).double()
        return [float(right[part].mean()) for part in parts]

    def to(self, device: torch.device) -> Self:
        names = ("train_images", "train_labels", "test_images", "test_labels", "mean", "deviation")
        return replace(self, **placed_fields(self, names, device))

    def _normalised(self, images: Tensor) -> Tensor:
        inputs = (images - self.mean) / self.deviation
        return inputs.flatten(1) if self.flat else inputs


def image_task(
    name: str, arrays: ImageArrays, model: Model, class_names: tuple[str, ...], *, flat: bool = False
) -> ImageClassification:
    """A task on cached arrays, normalised with the mean and deviation of its training images."""
    mean, deviation = (
        torch.tensor([255 * moment for moment in moments], dtype=torch.float32).view(-1, 1, 1)
        for moments in _moments(arrays)
    )
    return ImageClassification(
        name=name,
        model=model,
        classes=len(class_names),
        class_names=class_names,
        train_images=torch.from_numpy(arrays.train_images),
        train_labels=torch.from_numpy(arrays.train_labels).long(),
        test_images=torch.from_numpy(arrays.test_images),
        test_labels=torch.from_numpy(arrays.test_labels).long(),
        mean=mean,
        deviation=deviation,
        flat=flat,
    )


def set_model(learning: Learning, network: str) -> Model:
    """The paper's ResNet-9, a perceptron with the scenario's hidden layers, or a small CNN."""
    spec = IMAGE_SETS[learning.task]
    classes = len(spec.classes)
    match network:
        case "resnet9":
            return Resnet9(normalisation=learning.normalisation, classes=classes)
        case "mlp":
            return Mlp((math.prod(spec.image), *learning.hidden, classes))
        case _:
            return SmallCnn(image=spec.image, classes=classes)


def set_task(learning: Learning, model: Model) -> ImageClassification:
    spec = IMAGE_SETS[learning.task]
    return image_task(spec.name, load_images(spec), model, spec.classes, flat=isinstance(model, Mlp))


@lru_cache(maxsize=2)
def _moments(arrays: ImageArrays) -> tuple[list[float], list[float]]:
    """Cached for all runs of a process, because counting takes longer than drawing a world."""
    return arrays.moments()


def moved(images: Tensor, crops: Tensor) -> Tensor:
    """Shift images right and down by whole pixels, with black at the edges, and then mirror some.

    ``crops`` (n, 3): pixels right, pixels down, 1 to mirror.
    """
    count, channels, height, width = images.shape
    right, down, mirrored = (column.view(-1, 1, 1) for column in crops.unbind(dim=1))
    rows = torch.arange(height, device=images.device).view(1, -1, 1) - down
    columns = torch.arange(width, device=images.device).view(1, 1, -1)
    columns = torch.where(mirrored.bool(), width - 1 - columns, columns) - right
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    indices = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(count, 1, -1)
    pixels = images.flatten(2).gather(2, indices.expand(-1, channels, -1)).view(images.shape)
    return pixels * inside.unsqueeze(1)
