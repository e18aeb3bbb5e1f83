"""Any network of PyTorch as a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import InputError
from wayfare.learning.chance import chance_of_ones_own
from wayfare.learning.models.base import read_vector, statistics, trainable


@dataclass(frozen=True)
class Wrapped:
    """The network that a function builds; a function at the top of a file, so that other processes find it too.

    ``constants`` names the floating buffers that training does not change. They and frozen parameters are those of the
    network built with one fixed seed.
    """

    build: Callable[[], nn.Module]
    constants: frozenset[str] = frozenset()

    @cached_property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in trainable(self.module()).values())

    @cached_property
    def statistics(self) -> int:
        """The entries of buffers that training changes: running means and variances of batch normalisation."""
        return sum(buffer.numel() for buffer in statistics(self.module()).values())

    def module(self) -> nn.Module:
        return self._built(0)

    def initial(self, rng: np.random.Generator) -> Tensor:
        return read_vector(self._built(int(rng.integers(2**63)))).float()

    def refuse_changes(self, module: nn.Module) -> None:
        """Raise InputError if training has changed a constant of a module after all."""
        if self.constants:
            fresh = dict(self._fresh.named_buffers())
            for name in sorted(self.constants):
                if not same(module.get_buffer(name), fresh[name].to(module.get_buffer(name))):
                    raise InputError(
                        f"training changed the buffer {name} of the network, but not with the first samples; Wayfare "
                        "takes a buffer for a constant or for state by what the first samples do"
                    )

    @cached_property
    def _fresh(self) -> nn.Module:
        return self.module()

    def _built(self, seed: int) -> nn.Module:
        """Layers initialise themselves from PyTorch's default generator, so it is set and put back."""
        with chance_of_ones_own(torch.device("cpu")) as set_seed:
            set_seed(seed)
            module = self.build()
        for name in self.constants:
            owner, _, buffer = name.rpartition(".")
            # PyTorch's own mark of buffers that are no state.
            module.get_submodule(owner)._non_persistent_buffers_set.add(buffer)
        return module


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Copies:
    """Builds copies of a network that is ready, with its weights."""

    network: nn.Module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.network)
