"""The built-in task: 12,000 Fashion-MNIST images averaged to 14 x 14, included in the package.

The package also holds features of the same images, from EfficientNet-Lite0 (`scripts/build_fashion_features.py`).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

import numpy as np
import torch
from torch import Tensor

from wayfare.learning.models.base import Model
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks.base import Classification
from wayfare.scenario.model import Learning

CLASSES, PIXELS = 10, 14 * 14
BACKBONE, BACKBONE_PIXELS, FEATURES = "efficientnet-lite0", 160, 256


def fashion_small(hidden: tuple[int, ...]) -> Classification:
    learning = Learning(hidden=hidden)
    return fashion_small_task(learning, fashion_small_model(learning, "mlp"))


def fashion_small_model(learning: Learning, network: str) -> Model:
    return Mlp((PIXELS, *learning.hidden, CLASSES))


def fashion_small_task(learning: Learning, model: Model) -> Classification:
    """1,000 training and 200 test images of each class."""
    return _task(model, "fashion_small.npz")


def fashion_features_task(model: Model) -> Classification:
    """Features of the same images, in the same order."""
    return _task(model, "fashion_features.npz")


def _task(model: Model, file: str) -> Classification:
    train, test = _inputs(file)
    return Classification(
        name="fashion-small",
        model=model,
        classes=CLASSES,
        train_inputs=train,
        train_labels=_labels(len(train)),
        test_inputs=test,
        test_labels=_labels(len(test)),
    )


@cache
def _inputs(file: str) -> tuple[Tensor, Tensor]:
    """Training and test values, shifted and scaled so that the training values have mean 0 and deviation 1."""
    with as_file(files("wayfare.learning.tasks") / "data" / file) as path, np.load(path) as archive:
        train, test = archive["train"].astype(np.float32), archive["test"].astype(np.float32)
    mean, deviation = train.mean(dtype=np.float64), train.std(dtype=np.float64)
    return tuple(  # type: ignore[return-value]
        torch.from_numpy(((values - mean) / deviation).astype(np.float32)) for values in (train, test)
    )


def _labels(images: int) -> Tensor:
    """The classes take turns in the file."""
    return torch.arange(images) % CLASSES
