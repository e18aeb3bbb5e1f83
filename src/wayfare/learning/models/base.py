"""A network as a flat vector: its trainable parameters, then its normalisation statistics.

Frozen parameters (``requires_grad=False``) and non-persistent buffers, such as a causal mask, are not part of it,
because they are equal in every copy of a network.
"""

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
        """s: the number of trainable entries, which are sparsified."""

    @property
    def statistics(self) -> int:
        """The number of entries of running means and variances, which are never sparsified."""

    def module(self) -> nn.Module:
        """The network. Its vector is its `trainable` parameters followed by its `statistics`.

        Everything else in it is equal in every call.
        """

    def initial(self, rng: np.random.Generator) -> Tensor:
        """A random initial vector."""


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def statistics(module: nn.Module) -> dict[str, Tensor]:
    """The persistent floating-point buffers by name; they are state, not constants."""
    lasting = {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        for name, _ in layer.named_buffers(recurse=False)
        if name not in layer._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point() and name in lasting}


def entries(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that make up the vector of a module, in order."""
    yield from trainable(module).values()
    yield from statistics(module).values()


@torch.no_grad()
def load_vector(module: nn.Module, vector: Tensor) -> None:
    offset = 0
    for entry in entries(module):
        entry.copy_(vector[offset : offset + entry.numel()].view_as(entry))
        offset += entry.numel()


@torch.no_grad()
def read_vector(module: nn.Module) -> Tensor:
    return torch.cat([entry.detach().reshape(-1) for entry in entries(module)])
