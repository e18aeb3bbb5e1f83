"""Small backbones for tests: a chain that pools between its children, and a network that is no chain."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.learning.backbones import Backbone
from wayfare.learning.backbones.base import normalised
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.tuned import Tuned, Tuning
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.scenario.model import Trained

MODES: list[Trained] = ["norms", "adapters", "last-block", "everything"]


class Plus(nn.Module):
    """A block with a shortcut, a normalisation, a depthwise kernel and a random layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images + self.layers(images)


class Pooled(nn.Module):
    """A chain that pools between its children."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.Sequential(Plus(4), Plus(4))

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = self.blocks(self.stem(images)).mean(dim=(2, 3))
        return pooled


class Crossed(nn.Module):
    """Not a chain: its children see the same image."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = (self.one(images) * self.other(images)).mean(dim=(2, 3))
        return pooled


def backbone(module: type[nn.Module] = Pooled) -> Backbone:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = module()
        for layer in made.modules():
            if isinstance(layer, nn.BatchNorm2d):
                # As after a pre-training: far from the identity.
                channels = layer.num_features
                layer.running_mean, layer.running_var = torch.randn(channels), torch.rand(channels) + 0.5
                nn.init.normal_(layer.weight)
    return Backbone(name="pooled", module=made, features=4, mean=(127.0,) * 3, deviation=(128.0,) * 3)


def tuned(trained: Trained, blocks: int = 2, *, rank: int = 2, module: type[nn.Module] = Pooled) -> Tuned:
    tuning = Tuning(trained=trained, blocks=blocks, rank=rank, alpha=4.0)
    return Tuned(backbone=backbone(module), tuning=tuning, head=Mlp((4, 10)))


def small_task(model: Tuned) -> TunedClassification:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 10, 30))
    images = torch.from_numpy(rng.standard_normal((30, 3, 8, 8)))
    signal = nn.Sequential(*model.backbone.blocks[: model.cut])(images.float())
    return TunedClassification(
        name="random",
        model=model,
        classes=10,
        class_names=(),
        train_stored=signal,
        train_labels=labels,
        test_stored=signal,
        test_labels=labels,
        prepare=_as_given,
        on_features=partial(_features, model, signal, labels),
    )


@torch.no_grad()
def _features(model: Tuned, signal: Tensor, labels: Tensor) -> Classification:
    features = normalised(nn.Sequential(*model.backbone.blocks[model.cut :])(signal))
    return Classification(
        name="random",
        model=model.head,
        classes=10,
        train_inputs=features,
        train_labels=labels,
        test_inputs=features,
        test_labels=labels,
    )


def _as_given(stored: Tensor) -> Tensor:
    return stored
