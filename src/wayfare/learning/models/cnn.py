"""A small convolutional network for small images, without normalisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from wayfare.learning.models.layers import initial_vector


@dataclass(frozen=True, slots=True)
class SmallCnn:
    """Two 3x3 convolutions, each with ReLU and 2x2 max pooling, and two linear layers with ReLU between them.

    ``image`` is (channels, height, width), e.g. (1, 28, 28), (1, 14, 14) or (3, 32, 32).
    """

    image: tuple[int, int, int] = (1, 28, 28)
    channels: tuple[int, int] = (16, 32)
    hidden: int = 64
    classes: int = 10

    @property
    def features(self) -> int:
        """Inputs of the first linear layer: what two poolings leave of the image."""
        _, height, width = self.image
        return self.channels[1] * (height // 4) * (width // 4)

    @property
    def parameters(self) -> int:
        first, second = self.channels
        convolutions = 9 * self.image[0] * first + first + 9 * first * second + second
        linear = self.features * self.hidden + self.hidden + self.hidden * self.classes + self.classes
        return convolutions + linear

    @property
    def statistics(self) -> int:
        return 0

    def module(self) -> nn.Module:
        first, second = self.channels
        return nn.Sequential(
            nn.Conv2d(self.image[0], first, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(self.features, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.classes),
        )

    def initial(self, rng: np.random.Generator) -> Tensor:
        return initial_vector(self.module(), rng)
