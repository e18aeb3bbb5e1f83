"""Batch normalisation on a CPU, with moments as exact as for channels-first images.

For channels-last images PyTorch sums the values of a channel sequentially in float32, which costs half a digit of the
gradient (benchmarks/NOTES.md). Here sums are taken in pieces, which also stay in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 512


def batch_norm(signal: Tensor, mean: Tensor, variance: Tensor, momentum: float, eps: float) -> Tensor:
    """As `functional.batch_norm` in training mode without affine parameters. Updates the running moments."""
    rows = signal.detach().permute(0, 2, 3, 1).reshape(-1, signal.shape[1])
    batch_mean, batch_variance = _moments(rows)
    mean.lerp_(batch_mean, momentum)
    variance.lerp_(batch_variance * (len(rows) / max(len(rows) - 1, 1)), momentum)
    normalised: Tensor = _Normalised.apply(signal, batch_mean, batch_variance, eps)  # type: ignore[no-untyped-call]
    return normalised


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    parts = rows.split(_ROWS)
    mean = torch.stack([part.sum(dim=0) for part in parts]).sum(dim=0) / len(rows)
    squares = torch.stack([(part - mean).square_().sum(dim=0) for part in parts]).sum(dim=0)
    return mean, squares / len(rows)


class _Normalised(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps), also differentiated through its moments."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(signal, mean, torch.rsqrt(variance + eps))
        ctx.eps = eps
        return torch.native_batch_norm(signal, None, None, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        signal, mean, inverse = ctx.saved_tensors
        of_signal: Tensor = torch.ops.aten.native_batch_norm_backward(
            gradient, signal, None, None, None, mean, inverse, True, ctx.eps, [True, False, False]
        )[0]
        return of_signal, None, None, None
