"""Any network of PyTorch as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.learning.models.base import read_vector


@dataclass(frozen=True)
class Wrapped:
    """The network that a function builds; a function at the top of a file, so that other processes find it too."""

    build: Callable[[], nn.Module]

    @cached_property
    def parameters(self) -> int:
        """s: the trainable entries."""
        return sum(parameter.numel() for parameter in self.build().parameters())

    @cached_property
    def statistics(self) -> int:
        """The floating buffers: running means and variances of batch normalisation."""
        return sum(buffer.numel() for buffer in self.build().buffers() if buffer.is_floating_point())

    def module(self) -> nn.Module:
        """A fresh network."""
        return self.build()

    def initial(self, rng: np.random.Generator) -> Tensor:
        """As the network initialises itself. Layers draw from PyTorch's own generator, so it is set and put back."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(rng.integers(2**63)))
            return read_vector(self.build()).float()
