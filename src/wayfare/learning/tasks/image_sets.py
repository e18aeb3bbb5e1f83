"""The whole of a published image set: CIFAR-10, the paper's first workload, or Fashion-MNIST, which a CPU can train."""

from __future__ import annotations

import math

from wayfare.learning.data import ImageSet, load_images
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.images import ImageClassification, image_task
from wayfare.scenario.model import Learning


def set_model(spec: ImageSet, learning: Learning, network: str) -> Model:
    """The paper's ResNet-9, a perceptron with the scenario's hidden layers, or a small CNN to try things out."""
    classes = len(spec.classes)
    match network:
        case "resnet9":
            return Resnet9(normalisation=learning.normalisation, classes=classes)
        case "mlp":
            return Mlp((math.prod(spec.image), *learning.hidden, classes))
        case _:
            return SmallCnn(image=spec.image, classes=classes)


def set_task(spec: ImageSet, learning: Learning, model: Model) -> ImageClassification:
    return image_task(spec.name, load_images(spec), model, spec.classes, flat=isinstance(model, Mlp))
