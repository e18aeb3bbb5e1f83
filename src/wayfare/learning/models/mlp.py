"""A multilayer perceptron: its module, and its layout in a flat vector."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Mlp:
    """Linear layers of the given sizes with ReLU between them, e.g. (196, 256, 128, 10)."""

    sizes: tuple[int, ...]

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every linear layer."""
        return list(itertools.pairwise(self.sizes))

    @property
    def parameters(self) -> int:
        return sum(inputs * outputs + outputs for inputs, outputs in self.layers)

    @property
    def statistics(self) -> int:
        return 0

    def module(self) -> nn.Module:
        """The same network as a module; its parameters in order are the flat vector."""
        stages: list[nn.Module] = []
        for inputs, outputs in self.layers:
            stages += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*stages[:-1])

    def initial(self, rng: np.random.Generator) -> Tensor:
        """Uniform in +-1/sqrt(inputs) for weights and biases, as PyTorch initialises linear layers."""
        pieces = []
        for inputs, outputs in self.layers:
            bound = inputs**-0.5
            pieces.append(rng.uniform(-bound, bound, inputs * outputs + outputs))
        return torch.from_numpy(np.concatenate(pieces).astype(np.float32))
