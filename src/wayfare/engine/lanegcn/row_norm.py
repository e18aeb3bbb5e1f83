"""Normalisation within rows with per-device weights, fused with a sum and ReLU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wayfare.engine.lanegcn.fused import fused_kernels

_EPS = 1e-5
_FUSED_TYPES = (torch.float32, torch.bfloat16)


def normalised(rows: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None, *, rectified: bool) -> Tensor:
    """Normalise (devices, rows, ..., features) over all axes but the first two, as `nn.LayerNorm` does.

    ``weight`` (devices, features) scales the result, and the bias is added. ``added`` and ReLU are optional.

    Rows in bfloat16 stay in bfloat16; sums have the type of the weights. On a GPU it is one kernel.
    """
    if rows.is_cuda and rows.dtype in _FUSED_TYPES and weight.dtype == torch.float32 and rows.numel():
        kernels = fused_kernels(rows.device)
        if kernels is not None:
            fused: Tensor = kernels.FusedNorm.apply(rows, weight, bias, added, rectified, _EPS)
            return fused
    out: Tensor = _Normalised.apply(rows.to(weight.dtype), weight, bias, added, rectified)  # type: ignore[no-untyped-call]
    return out.to(rows.dtype)


class _Normalised(torch.autograd.Function):
    """With an explicit derivative: autograd would take twice as many passes over the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, rectified: bool) -> Tensor:
        broad = len(weight), *[1] * (rows.dim() - 2), -1
        inner, mean, inverse = torch.native_layer_norm(rows, rows.shape[2:], None, None, _EPS)
        out = torch.addcmul(bias.view(broad), inner, weight.view(broad))
        if added is not None:
            out.add_(added)
        if rectified:
            out.relu_()
        ctx.rectified, ctx.added = rectified, added is not None
        ctx.save_for_backward(rows, mean, inverse, inner, weight.view(broad), out if rectified else None)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        rows, mean, inverse, inner, weight, out = ctx.saved_tensors
        if ctx.rectified:
            gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
        others = tuple(range(1, rows.dim() - 1))
        of_bias = gradient.sum(dim=others)
        of_weight = (gradient * inner).sum(dim=others)
        of_rows: Tensor = torch.ops.aten.native_layer_norm_backward(
            gradient * weight, rows, rows.shape[2:], mean, inverse, None, None, [True, False, False]
        )[0]
        return of_rows, of_weight, of_bias, gradient if ctx.added else None, None
