"""Convolutions as matrix products of the pixels' neighbourhoods.

Products are reproducible, and the reproducible kernels of cuDNN are slow in strict float32. In TF32 cuDNN is faster
(benchmarks/NOTES.md), so only some recipes use this. All three passes are products:
out = N(x) W', dW = dy' N(x), dx = N(dy) R', where N(.) is the matrix of neighbourhoods, W the kernel as a matrix, and R
the flipped kernel with inputs and outputs exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def unfold_convolutions(module: nn.Module, max_pixels: int, max_weight_pixels: int = 0) -> None:
    """Compute 3x3 convolutions, or only the gradients of their kernels, as products on small images."""
    for name, layer in module.named_children():
        # Subclasses may compute something else.
        if type(layer) is nn.Conv2d and is_plain(layer):
            unfolded = UnfoldedConv2d(layer.in_channels, layer.out_channels, 3, padding=1, bias=layer.bias is not None)
            # The same parameters, because frozen ones keep their values.
            unfolded.weight, unfolded.bias = layer.weight, layer.bias
            unfolded.max_pixels, unfolded.max_weight_pixels = max_pixels, max_weight_pixels
            setattr(module, name, unfolded)
        else:
            unfold_convolutions(layer, max_pixels, max_weight_pixels)


def is_plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution is 3x3 and keeps the size of the image."""
    shape = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return shape == ((3, 3), (1, 1), (1, 1), (1, 1)) and layer.groups == 1 and layer.padding_mode == "zeros"


class UnfoldedConv2d(nn.Conv2d):
    """A 3x3 convolution that is a matrix product on small images."""

    max_pixels, max_weight_pixels = 0, 0

    def forward(self, signal: Tensor) -> Tensor:
        pixels = signal.shape[2] * signal.shape[3]
        if pixels > max(self.max_pixels, self.max_weight_pixels):
            return super().forward(signal)
        way = _Product if pixels <= self.max_pixels else _WeightProduct
        product: Tensor = way.apply(signal, self.weight)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.view(1, -1, 1, 1)


class _Product(torch.autograd.Function):
    """A convolution of channels-last signals (batch, channels, height, width) as a product."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, kernel: Tensor) -> Tensor:
        batch, _, height, width = signal.shape
        rows = _neighbourhoods(signal)
        out = rows @ kernel.permute(0, 2, 3, 1).reshape(len(kernel), -1).t()
        ctx.save_for_backward(rows, kernel)
        return out.view(batch, height, width, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, kernel = ctx.saved_tensors
        outputs, inputs = kernel.shape[:2]
        batch, _, height, width = gradient.shape
        flat = gradient.permute(0, 2, 3, 1).reshape(-1, outputs)
        of_kernel = (flat.t() @ rows).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, of_kernel
        turned = kernel.flip(2, 3).permute(2, 3, 0, 1).reshape(-1, inputs)
        of_signal = _neighbourhoods(gradient) @ turned
        return of_signal.view(batch, height, width, inputs).permute(0, 3, 1, 2), of_kernel


class _WeightProduct(torch.autograd.Function):
    """A convolution whose kernel gradient is a product; that of cuDNN clears a workspace first."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(signal, kernel)
        return functional.conv2d(signal, kernel, padding=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        signal, kernel = ctx.saved_tensors
        outputs, inputs = kernel.shape[:2]
        flat = gradient.permute(0, 2, 3, 1).reshape(-1, outputs)
        of_kernel = (flat.t() @ _neighbourhoods(signal)).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)
        if not ctx.needs_input_grad[0]:
            return None, of_kernel
        one = [1, 1]
        of_signal, _, _ = torch.ops.aten.convolution_backward(
            gradient, signal, kernel, None, one, one, one, False, [0, 0], 1, [True, False, False]
        )
        return of_signal, of_kernel


def _neighbourhoods(signal: Tensor) -> Tensor:
    """The 3x3 neighbourhood of every pixel, (batch height width, 9 channels); 0 beyond the border."""
    padded = functional.pad(signal.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    # (batch, height, width, channels, 3, 3), a view
    windows = padded.unfold(1, 3, 1).unfold(2, 3, 1)
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(signal.shape[0] * signal.shape[2] * signal.shape[3], -1)
