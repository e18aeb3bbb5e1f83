"""Convolutions of n devices whose backward pass also updates the kernels, with the pooling and ReLU after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wayfare.engine.traced.stepping import StackedStep

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """The arguments of a max pooling, one number for each axis of an image."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    ceil_mode: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The arguments of a convolution, one number for each axis of an image, and what follows it."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    pooling: Pooling | None
    relu: bool


def convolve(form: Convolution, step: StackedStep, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of joined channels, (batch, n C, ...), then max pooling, then ReLU, as far as there are any."""
    out: Tensor = _UpdatingConvolution.apply(  # type: ignore[no-untyped-call]
        inputs, weight, bias, step.trigger, step, form
    )
    return out


class _UpdatingConvolution(torch.autograd.Function):
    """The backward pass takes the SGD step of kernels and biases.

    The gradient of a pooling's input overwrites that input, which nothing else needs. New memory of this size costs
    page faults.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        trigger: Tensor,
        step: StackedStep,
        form: Convolution,
    ) -> Tensor:
        kernels, shift = weight.flatten(0, 1), None if bias is None else bias.flatten()
        options = form.stride, form.padding, form.dilation, False, [0] * len(form.stride), form.groups * step.count
        out: Tensor
        out = signal = _aten.convolution(inputs, kernels, shift, *options)
        ctx.step, ctx.form, ctx.options, ctx.weight, ctx.bias = step, form, options, weight, bias
        if form.pooling is not None:
            out, ctx.indices = _aten.max_pool2d_with_indices(signal, *_arguments(form.pooling))
            ctx.signal = signal
        if form.relu:
            out.relu_()
        ctx.save_for_backward(inputs, *([out] if form.relu else []))
        return out

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        (inputs, *out), step, form = ctx.saved_tensors, ctx.step, ctx.form
        if error.dim() == 4:
            # Operations on tensors whose layouts differ are slow.
            error = error.contiguous(memory_format=torch.channels_last)
        if out:
            # All who used the result have finished their backward pass, so its memory is free.
            error = _aten.threshold_backward.grad_input(error, out[0], 0, grad_input=out[0])
        if form.pooling is not None:
            error = _aten.max_pool2d_with_indices_backward.grad_input(
                error, ctx.signal, *_arguments(form.pooling), ctx.indices, grad_input=ctx.signal
            )
        bias_sizes = None if ctx.bias is None else [ctx.bias.numel()]
        wanted = [ctx.needs_input_grad[0], True, ctx.bias is not None]
        passed_on, of_kernels, of_bias = _aten.convolution_backward(
            error, inputs, ctx.weight.flatten(0, 1), bias_sizes, *ctx.options, wanted
        )
        ctx.weight.sub_(step.scaled(of_kernels.view(ctx.weight.shape)), alpha=step.rate)
        if ctx.bias is not None:
            ctx.bias.sub_(step.scaled(of_bias.view(ctx.bias.shape)), alpha=step.rate)
        return passed_on, None, None, None, None, None


def _arguments(pooling: Pooling) -> tuple[Any, ...]:
    return pooling.kernel, pooling.stride, pooling.padding, pooling.dilation, pooling.ceil_mode
