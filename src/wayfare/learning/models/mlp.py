"""A multilayer perceptron: its module, and its layout in a flat vector."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import nn

from wayfare.learning.models.layers import Layers


@dataclass(frozen=True, slots=True)
class Mlp(Layers):
    """Linear layers of the given sizes with ReLU between them, e.g. (196, 256, 128, 10)."""

    sizes: tuple[int, ...]

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every linear layer."""
        return list(itertools.pairwise(self.sizes))

    def build(self) -> nn.Module:
        stages: list[nn.Module] = []
        for inputs, outputs in self.layers:
            stages += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*stages[:-1])
