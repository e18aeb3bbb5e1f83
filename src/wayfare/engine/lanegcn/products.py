"""Products of rows with per-device matrices, and convolutions over time as such products.

Weights are stored transposed, with the outputs last, like rows. A step then transposes nothing, gradients have the
layout of the weights, and one call can update all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# A convolution over time looks one step back and one ahead.
_TIMES = 3


def turned(stack: Tensor) -> Tensor:
    """Transpose a module's weights (devices, outputs, inputs, times) to outputs last, or back."""
    return stack.permute(0, *range(stack.dim() - 1, 0, -1))


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None, onto: Tensor | None = None) -> Tensor:
    """(devices, rows, inputs) by ``weight`` (devices, inputs, outputs) -> (devices, rows, outputs).

    A ``bias`` (devices, outputs) is added, or the product is added to ``onto``, which is overwritten.
    """
    if onto is not None:
        # Autocast does not work in place.
        in_place = not torch.is_autocast_enabled(rows.device.type)
        return onto.baddbmm_(rows, weight) if in_place else torch.baddbmm(onto, rows, weight)
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)


def convolution(tracks: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """(devices, actors, time, inputs) by ``kernel`` (devices, times, inputs, outputs) -> (devices, actors, time /
    stride, outputs); a kernel has one time or three."""
    rows = tracks[:, :, ::stride] if kernel.shape[1] == 1 else _around(tracks, stride)
    devices, actors, time, inputs = rows.shape
    out = product(rows.reshape(devices, actors * time, inputs), kernel.flatten(1, 2))
    return out.view(devices, actors, time, -1)


def _around(tracks: Tensor, stride: int) -> Tensor:
    """(devices, actors, time, features) -> (devices, actors, time / stride, 3 features): every step with its
    predecessor and successor, 0 beyond the ends."""
    rows: Tensor = _Around.apply(tracks, stride)  # type: ignore[no-untyped-call]
    return rows


class _Around(torch.autograd.Function):
    """With an explicit derivative: that of `unfold` is slow on a GPU."""

    @staticmethod
    def forward(ctx: Any, tracks: Tensor, stride: int) -> Tensor:
        ctx.stride, ctx.time = stride, tracks.shape[2]
        return functional.pad(tracks, (0, 0, 1, 1)).unfold(2, _TIMES, stride).transpose(3, 4).flatten(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        before, here, after = gradient.unflatten(3, (_TIMES, -1)).unbind(dim=3)
        stride, time = ctx.stride, ctx.time
        if stride == 1:
            of_tracks = here.clone(memory_format=torch.contiguous_format)
        else:
            of_tracks = gradient.new_zeros(*here.shape[:2], time, here.shape[3])
            of_tracks[:, :, ::stride] = here
        # Nothing precedes the first step or follows the last.
        of_tracks[:, :, stride - 1 : (here.shape[2] - 1) * stride : stride].add_(before[:, :, 1:])
        following = of_tracks[:, :, 1::stride]
        following.add_(after[:, :, : following.shape[2]])
        return of_tracks, None
