"""Pieces that convolutional models share: initial values by our own generator, and how a module becomes a vector."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Floats


def initial_vector(module: nn.Module, rng: np.random.Generator) -> Tensor:
    """A vector to begin with, in the order of `entries`: weights and biases first, then running means and variances.

    Uniform in +-1/sqrt(inputs of a unit) for the weights and biases of convolutions and linear layers, as PyTorch
    initialises them; normalisations begin as the identity.
    """
    weights: list[Floats] = []
    statistics: list[Floats] = []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            weights += [rng.uniform(-bound, bound, entry.numel()) for entry in layer.parameters(recurse=False)]
        elif isinstance(layer, nn.BatchNorm2d):
            statistics += [np.zeros(layer.num_features), np.ones(layer.num_features)]
    return torch.from_numpy(np.concatenate(weights + statistics).astype(np.float32))
