"""Any PyTorch network as a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import InputError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.models.base import read_vector, statistics, trainable


@dataclass(frozen=True)
class Wrapped:
    """The network that a function builds. It must be a module-level function, so that other processes can import it.

    ``constants`` names the floating-point buffers that training does not change. A fixed seed determines them and the
    frozen parameters.
    """

    build: Callable[[], nn.Module]
    constants: frozenset[str] = frozenset()

    @cached_property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in trainable(self.module()).values())

    @cached_property
    def statistics(self) -> int:
        """The number of entries in buffers that training changes, such as running means and variances."""
        return sum(buffer.numel() for buffer in statistics(self.module()).values())

    def module(self) -> nn.Module:
        return self._built(0)

    def initial(self, rng: np.random.Generator) -> Tensor:
        return read_vector(self._built(int(rng.integers(2**63)))).float()

    def reject_changes(self, module: nn.Module) -> None:
        """Raise InputError if training has changed a constant of a module."""
        if self.constants:
            fresh = dict(self._fresh.named_buffers())
            for name in sorted(self.constants):
                if not same(module.get_buffer(name), fresh[name].to(module.get_buffer(name))):
                    raise InputError(
                        f"training changed the buffer {name} of the network, but the first samples did not; Wayfare "
                        "treats a buffer that the first samples do not change as a constant"
                    )

    @cached_property
    def _fresh(self) -> nn.Module:
        return self.module()

    def _built(self, seed: int) -> nn.Module:
        """Build with a seed; layers draw their initial values from PyTorch's default generator."""
        with seeded_generators(torch.device("cpu")) as set_seed:
            set_seed(seed)
            module = self.build()
        for name in self.constants:
            owner, _, buffer = name.rpartition(".")
            # PyTorch's own list of buffers that are not state.
            module.get_submodule(owner)._non_persistent_buffers_set.add(buffer)
        return module


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Copies:
    """Builds copies of a given network with its weights."""

    network: nn.Module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.network)
