"""Products as tensor cores make them of TF32: factors with ten bits after the point, sums with all their bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_FACTORS: dict[str, tuple[int, ...]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "baddbmm_": (1, 2),
}
_FACTORS |= {"convolution": (0, 1), "convolution_backward": (0, 1, 2)}


def tf32_of(numbers: Tensor, *, cut: bool = False) -> Tensor:
    """The nearest numbers of TF32, ties to even; with ``cut``, the next ones towards zero."""
    bits = numbers.float().contiguous().view(torch.int32)
    if not cut:
        bits = bits + 0xFFF + ((bits >> 13) & 1)
    return (bits & ~0x1FFF).view(torch.float32).to(numbers.dtype)


class ProductsInTf32(TorchDispatchMode):
    """Rounds the factors of every product, also in gradients, or cuts them as tensor cores do with single precision.

    A GPU may use TF32 and need not: for small products it often takes full precision. Here every product is rounded,
    so what comes out is the error that TF32 accounts for.
    """

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self._cut = cut

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        rounded = list(args)
        for place in _FACTORS.get(func._schema.name.removeprefix("aten::"), ()):
            rounded[place] = tf32_of(rounded[place], cut=self._cut)
        return func(*rounded, **(kwargs or {}))
