"""The weights of a layer for every device: adapters added, normalisation folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wayfare.engine.traced.stepping import StackedStep

# The index of a trained parameter among the weights of a step, or a constant that all devices share.
Entry: TypeAlias = int | Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """W + scale B A, with the indices of A and B."""

    down: int
    up: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Batch normalisation by constant moments: scale (x - mean) inverse + shift."""

    scale: Entry | None
    shift: Entry | None
    mean: Tensor
    inverse: Tensor  # 1 / sqrt(variance + eps)

    def of(self, step: StackedStep) -> tuple[Tensor, Tensor]:
        """Factors and shifts (n, channels), or with one row if all devices share them."""
        if isinstance(self.scale, int) and isinstance(self.shift, int):
            trained = step.weights[self.scale], step.weights[self.shift]
            folded: tuple[Tensor, Tensor] = _Folded.apply(*trained, self.mean, self.inverse)  # type: ignore[no-untyped-call]
            return folded
        inverse = self.inverse.unsqueeze(0)
        factor = inverse if self.scale is None else _rows(self.scale, step) * inverse
        return factor, -self.mean * factor if self.shift is None else _rows(self.shift, step) - self.mean * factor


class _Folded(torch.autograd.Function):
    """Factors and shifts of trained normalisation, with half as many launches of small kernels as by autograd."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, shift: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(mean, inverse)
        factor = scale * inverse
        return factor, torch.addcmul(shift, mean, factor, value=-1)

    @staticmethod
    def backward(ctx: Any, of_factor: Tensor, of_shift: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mean, inverse = ctx.saved_tensors
        return torch.addcmul(of_factor, mean, of_shift, value=-1).mul_(inverse), of_shift, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """The weight and bias of a linear layer or convolution, as functions of trained parameters."""

    weight: Entry
    bias: Entry | None = None
    adapter: Adapter | None = None
    norm: Norm | None = None

    @property
    def is_trained(self) -> bool:
        entries = [self.weight, self.bias, *((self.norm.scale, self.norm.shift) if self.norm else ())]
        return self.adapter is not None or any(isinstance(entry, int) for entry in entries)

    def apart(self, step: StackedStep) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """As `of`, but weights that devices train as they are come without their factor (n, outputs), which is last."""
        if self.norm is None or self.adapter is not None or not isinstance(self.weight, int):
            return *self.of(step), None
        factor, shift = self.norm.of(step)
        bias = shift if self.bias is None else _rows(self.bias, step) * factor + shift
        return step.weights[self.weight], bias, factor

    def of(self, step: StackedStep) -> tuple[Tensor, Tensor | None]:
        """Weights (n, *shape) and biases (n, outputs), or with one row if all devices share them."""
        weight = _rows(self.weight, step)
        bias = None if self.bias is None else _rows(self.bias, step)
        up = None if self.adapter is None else step.weights[self.adapter.up]
        if self.norm is not None:
            # It scales the frozen weight and B, which are smaller than their sum for every device.
            factor, shift = self.norm.of(step)
            weight = weight * factor.view(*factor.shape, *[1] * (weight.dim() - 2))
            bias = shift if bias is None else bias * factor + shift
            up = None if up is None else up * factor.unsqueeze(2)
        if self.adapter is not None and up is not None:
            down, flat = step.weights[self.adapter.down], weight.flatten(2)
            changed = torch.baddbmm(flat.expand(len(up), -1, -1), up, down, alpha=self.adapter.scale)
            weight = changed.view(len(up), *weight.shape[1:])
        return weight, bias


def _rows(entry: Entry, step: StackedStep) -> Tensor:
    return step.weights[entry] if isinstance(entry, int) else entry.unsqueeze(0)
