"""CIFAR-10 with ResNet-9, the paper's first workload."""

from __future__ import annotations

from wayfare.learning.data import CIFAR10, load_images
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.images import ImageClassification, image_task
from wayfare.scenario.model import Learning

NETWORKS = ("resnet9", "cnn")


def cifar10_model(learning: Learning, network: str) -> Model:
    """ResNet-9 with 6,568,650 parameters, or a small network for trying things out."""
    classes = len(CIFAR10.classes)
    if network == "resnet9":
        return Resnet9(normalisation=learning.normalisation, classes=classes)
    return SmallCnn(image=CIFAR10.image, classes=classes)


def cifar10_task(learning: Learning, model: Model) -> ImageClassification:
    """50,000 training and 10,000 test images out of the cache."""
    return image_task(CIFAR10.name, load_images(CIFAR10), model, CIFAR10.classes)
