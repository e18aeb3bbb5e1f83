"""Classification on the features of a frozen backbone: only the head on top of it is trained and sent."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from wayfare.errors import ScenarioError
from wayfare.learning.backbones import features_of, load_backbone
from wayfare.learning.data import IMAGE_SETS, load_images
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks.base import Classification
from wayfare.scenario.model import Learning

_NETWORKS = ("auto", "linear", "mlp")


def head_of(learning: Learning) -> Mlp:
    """The trained network: one linear layer, or a perceptron with the scenario's hidden layers."""
    if learning.task not in IMAGE_SETS:
        rule = f"needs images: learning.task must be one of {', '.join(IMAGE_SETS)}"
        raise ScenarioError("learning.backbone", learning.backbone, rule)
    if learning.network not in _NETWORKS:
        rule = f"on top of a backbone it must be one of {', '.join(_NETWORKS)}"
        raise ScenarioError("learning.network", learning.network, rule)
    for field, value in (("augment", learning.augment), ("recalibrate_statistics", learning.recalibrate_statistics)):
        if value:
            raise ScenarioError(f"learning.{field}", value, "is not for a backbone, whose features are computed once")
    hidden = learning.hidden if learning.network == "mlp" else ()
    classes = len(IMAGE_SETS[learning.task].classes)
    return Mlp((load_backbone(learning.backbone).features, *hidden, classes))


def pretrained_task(learning: Learning, model: Mlp) -> Classification:
    """The image set of a scenario as features."""
    spec = IMAGE_SETS[learning.task]
    images = load_images(spec)
    train, test = _inputs(learning.task, learning.backbone, learning.backbone_pixels)
    return Classification(
        name=spec.name,
        model=model,
        classes=len(spec.classes),
        train_inputs=train,
        train_labels=torch.from_numpy(images.train_labels).long(),
        test_inputs=test,
        test_labels=torch.from_numpy(images.test_labels).long(),
    )


@lru_cache(maxsize=1)
def _inputs(task: str, backbone: str, pixels: int) -> tuple[Tensor, Tensor]:
    """Shared by all runs of a process."""
    found = features_of(task, load_images(IMAGE_SETS[task]), load_backbone(backbone), pixels)
    return torch.from_numpy(found.train).float(), torch.from_numpy(found.test).float()
