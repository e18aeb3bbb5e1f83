"""Any network of PyTorch as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.learning.chance import chance_of_ones_own
from wayfare.learning.models.base import read_vector


@dataclass(frozen=True)
class Wrapped:
    """The network that a function builds; a function at the top of a file, so that other processes find it too."""

    build: Callable[[], nn.Module]

    @cached_property
    def parameters(self) -> int:
        """s: the trainable entries."""
        return sum(parameter.numel() for parameter in self.module().parameters())

    @cached_property
    def statistics(self) -> int:
        """The floating buffers: running means and variances of batch normalisation."""
        return sum(buffer.numel() for buffer in self.module().buffers() if buffer.is_floating_point())

    def module(self) -> nn.Module:
        """A fresh network, the same each time."""
        return self._built(0)

    def initial(self, rng: np.random.Generator) -> Tensor:
        """As the network initialises itself."""
        return read_vector(self._built(int(rng.integers(2**63)))).float()

    def _built(self, seed: int) -> nn.Module:
        """Layers initialise themselves from PyTorch's default generator, so it is set and put back."""
        with chance_of_ones_own(torch.device("cpu")) as set_seed:
            set_seed(seed)
            return self.build()
