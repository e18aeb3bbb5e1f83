"""Low-rank adapters: W + (alpha / r) B A beside a frozen linear layer or convolution.

E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. W is the weight as a matrix (outputs,
entries of one output): all inputs of a linear layer, all inputs and pixels of a kernel of a convolution. B is 0 at the
start, so that the network starts as it was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional


class LowRank(nn.Module):
    """A frozen layer and its adapter. A is ``down``, (r, entries of one output), and B is ``up``, (outputs, r)."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.scale = alpha / rank
        outputs = len(layer.weight)
        self.down = nn.Parameter(layer.weight.new_zeros(rank, layer.weight.numel() // outputs))
        self.up = nn.Parameter(layer.weight.new_zeros(outputs, rank))

    @property
    def bound(self) -> float:
        """Initial values of A are uniform up to this: their variance is 1 / (entries of one output)."""
        return math.sqrt(3 / self.down.shape[1])

    def forward(self, signal: Tensor) -> Tensor:
        """Two thin layers beside the frozen one if it is a matrix product, which spares the gradient of its weight.

        A kernel of several pixels has few entries, so that adding B A to it costs less.
        """
        layer, up = self.layer, self.scale * self.up
        changed: Tensor
        if isinstance(layer, nn.Linear):
            changed = layer(signal) + functional.linear(functional.linear(signal, self.down), up)
        elif _is_pointwise(layer) and signal.is_cuda:
            changed = self._products(signal, up)
        elif _is_pointwise(layer):
            inner = functional.conv2d(signal, self.down[:, :, None, None])
            changed = layer(signal) + functional.conv2d(inner, up[:, :, None, None])
        else:
            kernel = layer.weight + (up @ self.down).view(layer.weight.shape)
            changed = functional_call(layer, {"weight": kernel}, (signal,))
        return changed

    def _products(self, signal: Tensor, up: Tensor) -> Tensor:
        """A convolution of single pixels as products per image; cuDNN would reorder every signal before and after."""
        pixels, weight, bias = signal.flatten(2), self.layer.weight.flatten(1), self.layer.bias
        frozen = _for_each(weight, pixels)
        base = torch.bmm(frozen, pixels) if bias is None else torch.baddbmm(bias[:, None], frozen, pixels)
        inner = torch.bmm(_for_each(self.down, pixels), pixels)
        return torch.baddbmm(base, _for_each(up, pixels), inner).view(len(signal), -1, *signal.shape[2:])


def _is_pointwise(layer: nn.Conv2d) -> bool:
    return layer.weight.shape[2:].numel() == 1 and layer.groups == 1 and layer.stride == (1, 1)


def _for_each(matrix: Tensor, pixels: Tensor) -> Tensor:
    return matrix.expand(len(pixels), *matrix.shape)


def with_adapters(module: nn.Module, rank: int, alpha: float) -> int:
    """Put an adapter beside every linear layer and convolution inside a module; return how many."""
    count = 0
    for name, layer in list(module.named_children()):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            most = min(len(layer.weight), layer.weight[0].numel())
            setattr(module, name, LowRank(layer, min(rank, most), alpha * min(rank, most) / rank))
            count += 1
        else:
            count += with_adapters(layer, rank, alpha)
    return count


def adapters_of(module: nn.Module) -> list[LowRank]:
    return [layer for layer in module.modules() if isinstance(layer, LowRank)]
