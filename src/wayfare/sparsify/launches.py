"""Launches of Triton kernels with little work of the host.

At every launch Triton finds the compiled code of a kernel by the types, sizes and alignment of all arguments, and
describes the launch for hooks of profilers. Both take longer than the launch itself. Here a short key stands for the
arguments, and there are no hooks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Grid: TypeAlias = tuple[int, int, int]
_LARGEST = (1 << 31) - 1


class Kind(NamedTuple):
    """What Triton distinguishes in vectors of known types: the GPU, alignments, and whether indices are short."""

    device: int  # -1: a CPU
    vectors: tuple[tuple[int, bool], ...]


class Launches:
    """A kernel whose last parameters are constants. No other number may be one that Triton specialises."""

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any]) -> None:
        self._kernel, self._constants, self._options = kernel, constants, options
        self._values, self._compiled = tuple(constants.values()), dict[Kind, Any]()

    def __call__(self, key: Kind, grid: Grid, *arguments: Any) -> None:
        """Launch it. Calls with one key agree in `kind` of their vectors; other tensors are new or of one kind."""
        compiled = self._compiled.get(key)
        if compiled is None:
            # The interpreter returns nothing.
            self._compiled[key] = self._kernel[grid](*arguments, **self._constants, **self._options)
        else:
            stream, code = _current_stream(key.device), (compiled.function, compiled.packed_metadata)
            compiled.run(*grid, stream, *code, None, None, None, *arguments, *self._values)


def _current_stream(device: int) -> int:
    """The handle of the stream. `torch.cuda.current_stream` would make an object of it."""
    return torch._C._cuda_getCurrentRawStream(device)


def kind(*vectors: Tensor) -> Kind:
    aligned = tuple([(each.data_ptr() & 15, each.numel() > _LARGEST) for each in vectors])
    return Kind(vectors[0].get_device(), aligned)
