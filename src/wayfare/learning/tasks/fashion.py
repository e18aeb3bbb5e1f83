"""The whole of Fashion-MNIST, with a perceptron or a small convolutional network: a task that a CPU can train."""

from __future__ import annotations

import math

from wayfare.learning.data import FASHION, load_images
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks.images import ImageClassification, image_task
from wayfare.scenario.model import Learning

NETWORKS = ("mlp", "cnn")


def fashion_model(learning: Learning, network: str) -> Model:
    """A perceptron on the 784 pixels with the scenario's hidden layers, or two convolutions."""
    classes = len(FASHION.classes)
    if network == "mlp":
        return Mlp((math.prod(FASHION.image), *learning.hidden, classes))
    return SmallCnn(image=FASHION.image, classes=classes)


def fashion_task(learning: Learning, model: Model) -> ImageClassification:
    """60,000 training and 10,000 test images out of the cache."""
    return image_task(FASHION.name, load_images(FASHION), model, FASHION.classes, flat=isinstance(model, Mlp))
