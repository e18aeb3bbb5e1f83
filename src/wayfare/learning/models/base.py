"""A network as a flat vector: its trainable parameters, then its normalisation statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Model(Protocol):
    """The shape of a network. The vector of a network has ``parameters + statistics`` entries."""

    @property
    def parameters(self) -> int:
        """s: the trainable entries, which are sparsified."""
        ...

    @property
    def statistics(self) -> int:
        """The entries of running means and variances, which are exchanged whole; 0 without batch normalisation."""
        ...

    def module(self) -> nn.Module:
        """The network; its parameters and then its floating buffers, in order, are the vector."""
        ...

    def initial(self, rng: np.random.Generator) -> Tensor:
        """A vector to begin with."""
        ...


def entries(module: nn.Module) -> Iterator[Tensor]:
    """The tensors of a module that its vector is made of, in order."""
    yield from module.parameters()
    yield from (buffer for buffer in module.buffers() if buffer.is_floating_point())


@torch.no_grad()
def load_vector(module: nn.Module, vector: Tensor) -> None:
    """Copy a flat vector into a module."""
    offset = 0
    for entry in entries(module):
        entry.copy_(vector[offset : offset + entry.numel()].view_as(entry))
        offset += entry.numel()


@torch.no_grad()
def read_vector(module: nn.Module) -> Tensor:
    """The flat vector of a module."""
    return torch.cat([entry.detach().reshape(-1) for entry in entries(module)])
