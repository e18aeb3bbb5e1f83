"""A small convolutional network for small images, without normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from wayfare.learning.models.layers import Layers


@dataclass(frozen=True, slots=True)
class SmallCnn(Layers):
    """Two 3x3 convolutions, each with ReLU and 2x2 max pooling, and two linear layers with ReLU between them.

    ``image`` is (channels, height, width), e.g. (1, 28, 28), (1, 14, 14) or (3, 32, 32).
    """

    image: tuple[int, int, int] = (1, 28, 28)
    channels: tuple[int, int] = (16, 32)
    hidden: int = 64
    classes: int = 10

    def build(self) -> nn.Module:
        (inputs, height, width), (first, second) = self.image, self.channels
        return nn.Sequential(
            nn.Conv2d(inputs, first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.classes),
        )
