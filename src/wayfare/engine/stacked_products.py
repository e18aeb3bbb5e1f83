"""Products of rows by matrices that differ from device to device, and convolutions over time as such products.

The derivatives are written out: gradients of weights come out in the order the weights lie in, so that one call can
update all of them (PyTorch would take them one by one), and nothing is transposed on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# A convolution over time looks one step back and one ahead.
TIMES = 3


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None, onto: Tensor | None = None) -> Tensor:
    """(devices, rows, inputs) by ``weight`` (devices, outputs, inputs) -> (devices, rows, outputs).

    A ``bias`` (devices, outputs) is added, or the product is added to ``onto``, which is used up.
    """
    kind = _kind(rows)
    if onto is not None and onto.dtype != kind:
        onto = onto.to(kind)
    out: Tensor = _Product.apply(rows, weight, bias, onto, kind)  # type: ignore[no-untyped-call]
    return out


def convolution(tracks: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """(devices, actors, time, inputs) by ``kernel`` (devices, outputs, times, inputs) -> (devices, actors, time /
    stride, outputs); a kernel has one time or three."""
    rows = tracks[:, :, ::stride] if kernel.shape[2] == 1 else _around(tracks, stride)
    devices, actors, time, inputs = rows.shape
    return product(rows.reshape(devices, actors * time, inputs), kernel.flatten(2)).view(devices, actors, time, -1)


def _kind(rows: Tensor) -> torch.dtype:
    """The type products are taken in."""
    where = rows.device.type
    return torch.get_autocast_dtype(where) if torch.is_autocast_enabled(where) else rows.dtype


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None, kind: torch.dtype
    ) -> Tensor:
        ctx.types, ctx.bias, ctx.onto = (rows.dtype, weight.dtype), bias is not None, onto is not None
        rows, weight = rows.to(kind), weight.to(kind)
        ctx.save_for_backward(rows, weight)
        if onto is not None:
            # Into the same memory, which autograd is not told of: nothing else reads it, and it may be a view.
            return onto.detach().baddbmm_(rows, weight.transpose(1, 2))
        if bias is not None:
            return torch.baddbmm(bias.to(kind).unsqueeze(1), rows, weight.transpose(1, 2))
        return torch.bmm(rows, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight = ctx.types
        return (
            torch.bmm(gradient, weight).to(of_rows) if ctx.needs_input_grad[0] else None,
            torch.bmm(gradient.transpose(1, 2), rows).to(of_weight),
            gradient.sum(dim=1, dtype=of_weight) if ctx.bias else None,
            gradient if ctx.onto else None,
            None,
        )


def _around(tracks: Tensor, stride: int) -> Tensor:
    """(devices, actors, time, features) -> (devices, actors, time / stride, 3 features): every step between the one
    before it and the one after, 0 beyond the ends."""
    rows: Tensor = _Around.apply(tracks, stride)  # type: ignore[no-untyped-call]
    return rows


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tracks: Tensor, stride: int) -> Tensor:
        ctx.stride, ctx.time = stride, tracks.shape[2]
        return functional.pad(tracks, (0, 0, 1, 1)).unfold(2, TIMES, stride).transpose(3, 4).flatten(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        before, here, after = gradient.unflatten(3, (TIMES, -1)).unbind(dim=3)
        stride, time = ctx.stride, ctx.time
        if stride == 1:
            of_tracks = here.clone(memory_format=torch.contiguous_format)
        else:
            of_tracks = gradient.new_zeros(*here.shape[:2], time, here.shape[3])
            of_tracks[:, :, ::stride] = here
        # The first step has nothing before it, and what would come after the last is no step.
        of_tracks[:, :, stride - 1 : (here.shape[2] - 1) * stride : stride].add_(before[:, :, 1:])
        following = of_tracks[:, :, 1::stride]
        following.add_(after[:, :, : following.shape[2]])
        return of_tracks, None
