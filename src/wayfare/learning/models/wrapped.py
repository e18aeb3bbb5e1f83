"""Any PyTorch network as a model."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

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
        constants = {*self.constants, *whole_buffers(module)}
        if constants:
            fresh = dict(self._fresh.named_buffers())
            for name in sorted(constants):
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
            module = _uncompiled(self.build())
        for name in self.constants:
            owner, _, buffer = name.rpartition(".")
            # PyTorch's own list of buffers that are not state.
            module.get_submodule(owner)._non_persistent_buffers_set.add(buffer)
        return module


def whole_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of other than real numbers, which no vector holds. Those that only count minibatches are left out."""
    counters = {
        f"{prefix}.num_batches_tracked" if prefix else "num_batches_tracked"
        for prefix, layer in module.named_modules()
        if isinstance(layer, _NormBase)
    }
    found = module.named_buffers()
    return {name: buffer for name, buffer in found if not buffer.is_floating_point() and name not in counters}


def _uncompiled(module: nn.Module) -> nn.Module:
    """The network inside `torch.compile`. Engines choose how to run it, and compiled layers draw other numbers."""
    # Importing torch._dynamo takes a second, and without it nothing is compiled.
    dynamo = sys.modules.get("torch._dynamo")
    return module._orig_mod if dynamo is not None and isinstance(module, dynamo.OptimizedModule) else module


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Copies:
    """Builds copies of a given network with its weights."""

    network: nn.Module

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.network)
