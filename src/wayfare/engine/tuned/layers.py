"""Linear layers and convolutions of n devices on signals (n x batch, channels, height, width) with channels last.

Weights are (n, *shape), or have one row that all devices share. Biases are (n, outputs), or one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Types that the kernels know.
_KERNEL_TYPES = torch.float32, torch.bfloat16
# Matrix units read this many entries of a row at once, if rows have a multiple of it.
_UNIT = 8
# Rows whose products are added up at a time.
_SUMMED_ROWS = 3200


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A convolution and the ReLU after it, cut off at a limit: infinity for ReLU, negative for none.

    Kernels of products and depthwise convolutions also pass gradients through the ReLU before them, whose limit is
    ``gate``, and then the layer before them is ``gated``.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom
    dilation: tuple[int, int]
    groups: int
    limit: float = -1.0
    gate: float = -1.0
    gated: bool = False

    @property
    def is_product(self) -> bool:
        return self.kernel == self.stride == (1, 1) and not any(self.padding) and self.groups == 1

    def is_depthwise(self, channels: int, outputs: int) -> bool:
        """Whether the kernels compute it: one square window of three or five pixels for every channel."""
        known = self.kernel in ((3, 3), (5, 5)) and self.stride in ((1, 1), (2, 2)) and self.dilation == (1, 1)
        return known and self.groups == channels == outputs


# A linear layer: the product of a convolution with one pixel.
_LINEAR = Form(kernel=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1)


def linear(signal: Tensor, weight: Tensor, bias: Tensor | None, count: int) -> Tensor:
    """x W' + b along the last axis of signals (n x batch, ..., inputs)."""
    rows = signal.reshape(count, -1, signal.shape[-1])
    return _product(rows, weight, bias, _LINEAR, kernels=False).view(*signal.shape[:-1], -1)


def convolution(
    signal: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    form: Form,
    count: int,
    *,
    kernels: bool,
    factor: Tensor | None = None,
) -> Tensor:
    """A convolution, its bias and its ReLU. Weights are multiplied by the factor (n, outputs), if any.

    ``kernels``: Triton can compile for the device of the signal.
    """
    kernels = kernels and signal.dtype in _KERNEL_TYPES
    images, channels = signal.permute(0, 2, 3, 1), signal.shape[1]
    if form.is_product:
        rows = images.reshape(count, -1, channels)
        out = _product(rows, weight.flatten(2), bias, form, kernels=kernels, factor=factor)
        return out.view(*images.shape[:3], -1).permute(0, 3, 1, 2)
    if factor is not None:
        weight = weight * factor.view(*factor.shape, 1, 1, 1)
    if kernels and form.is_depthwise(channels, weight.shape[1]):
        found: Tensor = _Depthwise.apply(  # type: ignore[no-untyped-call]
            images.contiguous(), weight, bias, form, count
        )
        return found.permute(0, 3, 1, 2)
    padded = functional.pad(signal, form.padding) if any(form.padding) else signal
    if not signal.requires_grad and len(weight) > 1 and form.groups == 1:
        return _of_neighbourhoods(padded, weight, bias, form, count, kernels=kernels)
    return _activated(_plain(padded, weight, bias, form, count), form.limit)


def _plain(padded: Tensor, weight: Tensor, bias: Tensor | None, form: Form, count: int) -> Tensor:
    """PyTorch's convolution: of one batch if devices share the weights, otherwise with one group per device."""
    weight = weight.to(padded.dtype)
    bias = None if bias is None else bias.to(padded.dtype)
    options = form.stride, 0, form.dilation
    if len(weight) == 1 and (bias is None or len(bias) == 1):
        return functional.conv2d(padded, weight[0], None if bias is None else bias[0], *options, form.groups)
    weight = weight.expand(count, *weight.shape[1:])
    shift = None if bias is None else bias.expand(count, -1).flatten()
    apart = padded.unflatten(0, (count, -1))
    joined = apart.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    out = functional.conv2d(joined, weight.flatten(0, 1), shift, *options, form.groups * count)
    found: Tensor = out.unflatten(1, (count, -1)).transpose(0, 1).flatten(0, 1)
    return found.contiguous(memory_format=torch.channels_last)


def _of_neighbourhoods(
    padded: Tensor, weight: Tensor, bias: Tensor | None, form: Form, count: int, *, kernels: bool
) -> Tensor:
    """A convolution of images that need no gradient as a product: the pixels around each position are a row."""
    windows = padded.permute(0, 2, 3, 1)
    for axis, (kernel, stride, apart) in enumerate(zip(form.kernel, form.stride, form.dilation, strict=True)):
        windows = windows.unfold(axis + 1, (kernel - 1) * apart + 1, stride)[..., ::apart]
    # (images, rows, columns, kernel rows, kernel columns, channels): the last two are adjacent in memory.
    windows, taps = windows.permute(0, 1, 2, 4, 5, 3), weight.permute(0, 1, 3, 4, 2).flatten(2)
    used = taps.shape[2]
    unused = -used % _UNIT if kernels else 0
    rows = padded.new_zeros(*windows.shape[:3], used + unused)
    rows[..., :used].unflatten(-1, windows.shape[3:]).copy_(windows)
    rows = rows.view(count, -1, used + unused)
    out = _product(rows, functional.pad(taps, (0, unused)), bias, form, kernels=kernels)
    return out.view(*windows.shape[:3], -1).permute(0, 3, 1, 2)


def _product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, form: Form, *, kernels: bool, factor: Tensor | None = None
) -> Tensor:
    found: Tensor = _Product.apply(rows, weight, bias, factor, form, kernels)  # type: ignore[no-untyped-call]
    return found


class _Product(torch.autograd.Function):
    """min(max(x (f W)' + b, 0), limit) for rows (n, rows, inputs), with a factor f of every output or without."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factor: Tensor | None,
        form: Form,
        kernels: bool,
    ) -> Tensor:
        low = _folded(weight, factor, rows.dtype)
        out = _activated_product(rows, low, bias, form.limit, kernels=kernels)
        has_gate = form.limit >= 0 and not (form.gated and kernels)
        ctx.save_for_backward(rows, low, out if has_gate else None, None if factor is None else weight, factor)
        ctx.limit, ctx.kernels = form.limit if has_gate else -1.0, kernels
        ctx.gate = form.gate if kernels else -1.0
        return out

    @staticmethod
    def backward(
        ctx: Any, error: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, None, None]:
        rows, weight, out, plain, factor = ctx.saved_tensors
        wants_rows, wants_weight, wants_bias, wants_factor = ctx.needs_input_grad[:4]
        error, of_bias = _before_activation(error.contiguous(), out, ctx, summed=wants_bias)
        of_rows = _gradient_of_rows(error, weight, rows, ctx.gate) if wants_rows else None
        of_weight = _sum_of_products(error, rows) if wants_weight or wants_factor else None
        of_factor = None
        if of_weight is not None and factor is not None:
            of_weight, of_factor = _gradients_of_folded(of_weight, plain, factor, kernels=ctx.kernels)
        return of_rows, of_weight, of_bias, of_factor if wants_factor else None, None, None


def _folded(weight: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Weights times their factors, rounded once."""
    if factor is None:
        return weight.to(dtype)
    return torch.mul(weight, factor.unsqueeze(2), out=torch.empty_like(weight, dtype=dtype))


def _gradients_of_folded(gradient: Tensor, weight: Tensor, factor: Tensor, *, kernels: bool) -> tuple[Tensor, Tensor]:
    if kernels:
        from wayfare.engine.tuned.folding import gradients_of_folded

        return gradients_of_folded(gradient, weight, factor)
    return gradient * factor.unsqueeze(2), (gradient * weight).sum(dim=2)


def _activated_product(rows: Tensor, weight: Tensor, bias: Tensor | None, limit: float, *, kernels: bool) -> Tensor:
    if kernels and (bias is not None or limit >= 0):
        from wayfare.engine.tuned.products import activated_product, pays

        if pays(rows, weight.shape[1]):
            return activated_product(rows, weight, None if bias is None else bias.float().contiguous(), limit)
    out = torch.matmul(rows, weight[0].T) if len(weight) == 1 else torch.bmm(rows, weight.transpose(1, 2))
    if bias is not None or limit >= 0:
        _activate_(out, bias, limit, kernels=kernels)
    return out


def _gradient_of_rows(error: Tensor, weight: Tensor, rows: Tensor, gate: float) -> Tensor:
    """e W; before the ReLU that made the rows, if it has a limit."""
    if gate >= 0:
        from wayfare.engine.tuned.depthwise import Gate
        from wayfare.engine.tuned.products import pays, product_inputs

        if pays(error, weight.shape[2], gated=True):
            return product_inputs(error, weight, Gate(rows, gate))
    found = torch.matmul(error, weight[0]) if len(weight) == 1 else torch.bmm(error, weight)
    if gate >= 0:
        from wayfare.engine.tuned.relu import before_activation

        found, _ = before_activation(found, rows, gate, summed=False)
    return found


def _sum_of_products(error: Tensor, rows: Tensor) -> Tensor:
    """e' x for errors (n, rows, outputs). A sum over many rows is one of parts, which keep more units busy."""
    parts = rows.shape[1] // _SUMMED_ROWS
    if parts < 2 or rows.shape[1] % parts:
        return torch.bmm(error.transpose(1, 2), rows)
    apart = [each.reshape(-1, rows.shape[1] // parts, each.shape[2]) for each in (error, rows)]
    found = torch.bmm(apart[0].transpose(1, 2), apart[1])
    return found.view(len(rows), parts, *found.shape[1:]).sum(
        dim=1, dtype=torch.promote_types(rows.dtype, torch.float32)
    )


class _Depthwise(torch.autograd.Function):
    """min(max(w * x + b, 0), limit) for images (n x batch, height, width, channels), one window for every channel."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, form: Form, count: int) -> Tensor:
        from wayfare.engine.tuned.depthwise import Window, depthwise

        (left, right, top, bottom), size, stride = form.padding, form.kernel[0], form.stride[0]
        window = Window(
            kernel=size,
            stride=stride,
            top=top,
            left=left,
            height=images.shape[1],
            width=images.shape[2],
            out_height=(images.shape[1] + top + bottom - size) // stride + 1,
            out_width=(images.shape[2] + left + right - size) // stride + 1,
        )
        taps = weight.flatten(2).transpose(1, 2).float().contiguous()
        out = depthwise(images, taps, None if bias is None else bias.float().contiguous(), window, form.limit)
        has_gate = form.limit >= 0 and not form.gated
        ctx.save_for_backward(images, taps, out if has_gate else None)
        ctx.limit, ctx.gate = form.limit if has_gate else -1.0, form.gate
        ctx.window, ctx.count, ctx.kernels, ctx.shape = window, count, True, weight.shape
        return out

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        from wayfare.engine.tuned.depthwise import Gate, depthwise_inputs
        from wayfare.engine.tuned.depthwise_sums import depthwise_weights

        images, taps, out = ctx.saved_tensors
        wants_images, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        rows = error.contiguous().view(ctx.count, -1, error.shape[3])
        after = None if out is None else out.view(rows.shape)
        # The kernel of the weights also adds up the gradient of the bias.
        rows, of_bias = _before_activation(rows, after, ctx, summed=wants_bias and not wants_weight)
        error = rows.view(error.shape)
        gate = Gate(images, ctx.gate) if ctx.gate >= 0 else None
        of_images = depthwise_inputs(error, taps, ctx.window, gate) if wants_images else None
        of_weight = None
        if wants_weight:
            of_taps, of_shift = depthwise_weights(error, images, ctx.count, ctx.window)
            of_weight = of_taps.transpose(1, 2).reshape(ctx.shape)
            of_bias = of_shift if wants_bias else None
        return of_images, of_weight, of_bias, None, None


def _activate_(rows: Tensor, bias: Tensor | None, limit: float, *, kernels: bool) -> None:
    if kernels:
        from wayfare.engine.tuned.relu import activate_

        activate_(rows, None if bias is None else bias.float().contiguous(), limit)
        return
    if bias is not None:
        rows.add_(bias.unsqueeze(1))
    if limit >= 0:
        rows.clamp_(0, limit)


def _activated(signal: Tensor, limit: float) -> Tensor:
    if limit < 0:
        return signal
    return functional.relu(signal) if math.isinf(limit) else functional.hardtanh(signal, 0.0, limit)


def _before_activation(error: Tensor, out: Tensor | None, ctx: Any, *, summed: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient before ReLU of rows (n, rows, channels), and its sum over rows."""
    if ctx.kernels and (out is not None or summed):
        from wayfare.engine.tuned.relu import before_activation

        return before_activation(error, error if out is None else out, ctx.limit, summed=summed)
    if out is not None:
        error = torch.where((out <= 0) | (out >= ctx.limit), 0, error)
    return error, error.sum(dim=1) if summed else None
