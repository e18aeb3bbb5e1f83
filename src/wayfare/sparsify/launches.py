"""Launches of Triton kernels with little work of the host.

At every launch Triton finds the compiled code of a kernel by the types, sizes and alignment of all arguments, which
takes longer than the launch itself. Here a short key stands for them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

from torch import Tensor

Grid: TypeAlias = tuple[int, int, int]
_LARGEST = (1 << 31) - 1


class Launches:
    """A kernel whose last parameters are constants. No other number may be one that Triton specialises."""

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any]) -> None:
        self._kernel, self._constants, self._options = kernel, constants, options
        self._values, self._compiled = tuple(constants.values()), dict[Hashable, Any]()

    def __call__(self, key: Hashable, grid: Grid, *arguments: Any) -> None:
        """Launch it. Calls with one key agree in `kind` of their vectors; other tensors are new or of one kind."""
        compiled = self._compiled.get(key)
        if compiled is None:
            # The interpreter returns nothing.
            self._compiled[key] = self._kernel[grid](*arguments, **self._constants, **self._options)
        else:
            compiled[grid](*arguments, *self._values)


def kind(*vectors: Tensor) -> Hashable:
    """What Triton distinguishes in vectors of known types: the device, the alignment, and whether indices are short."""
    return vectors[0].device.index, *((each.data_ptr() & 15, each.numel() > _LARGEST) for each in vectors)
