"""Base class of Wayfare's networks: sizes of their vectors, and initial values from a keyed generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Floats
from wayfare.learning.chance import private_draws
from wayfare.learning.models.base import statistics, trainable


class LastNorm(nn.LayerNorm):
    """The last norm of a residual block. Its initial weight is 0, so that a stack of blocks starts as the identity."""


class Layers(ABC):
    """The shape of a network; it determines the module and the length of its vector."""

    __slots__ = ()

    def module(self) -> nn.Module:
        """The network. Its flat vector is its parameters followed by its statistics."""
        with private_draws():
            return self.build()

    @abstractmethod
    def build(self) -> nn.Module:
        """The network, with values that PyTorch draws."""

    @property
    def parameters(self) -> int:
        return _sizes(self)[0]

    @property
    def statistics(self) -> int:
        return _sizes(self)[1]

    def initial(self, rng: np.random.Generator) -> Tensor:
        """Initial values as in PyTorch: weights and biases uniform in +-1/sqrt(inputs of a unit).

        Normalisations start as the identity, except `LastNorm`, which starts at 0.
        """
        weights: list[Floats] = []
        running: list[Floats] = []
        for layer in _without_values(self).modules():
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
                bound = layer.weight[0].numel() ** -0.5
                weights += [rng.uniform(-bound, bound, entry.numel()) for entry in layer.parameters(recurse=False)]
            elif isinstance(layer, nn.LayerNorm | nn.GroupNorm) and layer.weight is not None:
                weight = 0.0 if isinstance(layer, LastNorm) else 1.0
                weights += [np.full(layer.weight.numel(), weight), np.zeros(layer.bias.numel())]
            elif isinstance(layer, nn.BatchNorm2d):
                running += [np.zeros(layer.num_features), np.ones(layer.num_features)]
        return torch.from_numpy(np.concatenate(weights + running).astype(np.float32))


@cache
def _sizes(model: Layers) -> tuple[int, int]:
    module = _without_values(model)
    trained, kept = (sum(entry.numel() for entry in of(module).values()) for of in (trainable, statistics))
    return trained, kept


@cache
def _without_values(model: Layers) -> nn.Module:
    """The shapes of the network, made once; nothing may change them."""
    with torch.device("meta"):
        return model.module()
