"""Operations with the parameters of n devices, on samples that are stored device after device.

``axis`` is the axis of the samples, of length n B. Parameters are (n, *shape).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wayfare.engine.traced.stepping import StackedStep, folded, unfolded


def linear(
    step: StackedStep,
    axis: int,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    fused: bool = False,
    relu: bool = False,
) -> Tensor:
    """x W' + b with a batched product. ``fused``: its backward pass also updates the weights.

    ``relu``: a fused product also applies ReLU.
    """
    rows = unfolded(inputs, axis, step.count)
    if axis:
        rows = rows.movedim(axis, 0)
    rows = rows.reshape(step.count, -1, inputs.shape[-1])
    if fused:
        out: Tensor = _UpdatingProduct.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, step.trigger, step, relu
        )
    else:
        out = _product(rows, weight, bias)
    shape = list(inputs.shape)
    if axis == 0:
        return out.view(*shape[:-1], out.shape[-1])
    shape[axis] //= step.count
    return folded(out.view(step.count, *shape[:-1], out.shape[-1]), axis)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    kernel = weight.transpose(1, 2)
    return torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, kernel)


class _UpdatingProduct(torch.autograd.Function):
    """x W' + b, whose backward pass takes the SGD step of W and b: their gradients are never stored."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, trigger: Tensor, step: StackedStep, relu: bool
    ) -> Tensor:
        out = _product(rows, weight, bias)
        if relu:
            out.relu_()
        ctx.save_for_backward(rows, *([out] if relu else []))
        ctx.weight, ctx.bias, ctx.step = weight, bias, step
        return out

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        (rows, *out), step = ctx.saved_tensors, ctx.step
        if out:
            # All who used the result have finished their backward pass, so its memory is free.
            error = torch.ops.aten.threshold_backward.grad_input(error, out[0], 0, grad_input=out[0])
        # Propagate the error through the weights before they change.
        passed_on = torch.bmm(error, ctx.weight) if ctx.needs_input_grad[0] else None
        scaled = step.scaled(error)
        ctx.weight.baddbmm_(scaled.transpose(1, 2), rows, alpha=-step.rate)
        if ctx.bias is not None:
            ctx.bias.sub_(scaled.sum(dim=1), alpha=step.rate)
        return passed_on, None, None, None, None, None


def product(step: StackedStep, axis: int, inputs: Tensor, matrix: Tensor) -> Tensor:
    """x M, for matrices (n, inputs, outputs)."""
    return linear(step, axis, inputs, matrix.transpose(1, 2))


def convolution(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The stacked form of one of PyTorch's convolutions, on joined channels: one group of channels per device."""

    def stacked(
        step: StackedStep,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        kernels, shift = weight.flatten(0, 1), None if bias is None else bias.flatten()
        return convolve(inputs, kernels, shift, stride, padding, dilation, groups * step.count)

    return stacked


def by_channel(call: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """An operation on joined channels."""
    for each in args:
        keep_layout(each)
    return call(*args, **kwargs)


def keep_layout(joined: Any) -> None:
    """Let the gradient of joined images have their layout: PyTorch is slow where the two differ."""
    if isinstance(joined, Tensor) and joined.dim() == 4 and joined.requires_grad and not joined.is_cuda:
        joined.register_hook(_channels_last)


def _channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


def join_channels(step: StackedStep, samples: Tensor) -> Tensor:
    """(n B, C, ...) -> (B, n C, ...): the channels of the devices side by side, as convolutions need them."""
    joined = unfolded(samples, 0, step.count).transpose(0, 1).flatten(1, 2)
    return joined.contiguous(memory_format=torch.channels_last) if joined.dim() == 4 else joined


def separate_channels(step: StackedStep, joined: Tensor) -> Tensor:
    """(B, n C, ...) -> (n B, C, ...)."""
    keep_layout(joined)
    return unfolded(joined, 1, step.count).transpose(0, 1).flatten(0, 1)


def joined_group_norm(
    step: StackedStep,
    inputs: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    shift, scale = (None if each is None else each.flatten() for each in (bias, weight))
    return functional.group_norm(inputs, num_groups * step.count, scale, shift, eps)


def joined_frozen_norm(
    step: StackedStep,
    inputs: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation by constant moments. Scale and shift are constants too, or (n, channels)."""
    keep_layout(inputs)
    moved, spread, scale, shift = (
        None if each is None else each.flatten() if each.dim() == 2 else each.repeat(step.count)
        for each in (mean, variance, weight, bias)
    )
    return functional.batch_norm(inputs, moved, spread, scale, shift, False, 0.0, eps)


def layer_norm(
    step: StackedStep,
    axis: int,
    inputs: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if weight is not None and bias is not None and axis == 0 and not inputs.is_cuda:
        out: Tensor = _LayerNorm.apply(  # type: ignore[no-untyped-call]
            unfolded(inputs, 0, step.count), list(normalized_shape), weight, bias, eps
        )
        return out.flatten(0, 1)
    plain = functional.layer_norm(inputs, list(normalized_shape), eps=eps)
    return _affine(step, axis, plain, weight, bias)


class _LayerNorm(torch.autograd.Function):
    """Layer normalisation of samples (n, B, ...) on a CPU, with a scale and a shift for each device."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shape: list[int], scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        # PyTorch takes twice as long without any scale and shift.
        ones, zeros = inputs.new_ones(shape), inputs.new_zeros(shape)
        plain, mean, inverse = torch.ops.aten.native_layer_norm(inputs, shape, ones, zeros, eps)
        ctx.shape = shape
        ctx.save_for_backward(inputs, plain, mean, inverse, scale)
        return torch.addcmul(_aligned(shift, plain), plain, _aligned(scale, plain))

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor, None]:
        inputs, plain, mean, inverse, scale = ctx.saved_tensors
        over = list(range(1, error.dim() - len(ctx.shape)))
        of_shift, product = error.sum(dim=over), error * plain
        of_scale = product.sum(dim=over)
        torch.mul(error, _aligned(scale, error), out=product)
        of_inputs, _, _ = torch.ops.aten.native_layer_norm_backward(
            product, inputs, ctx.shape, mean, inverse, None, None, [True, False, False]
        )
        return of_inputs, None, of_scale, of_shift, None


def group_norm(
    step: StackedStep,
    axis: int,
    inputs: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    plain = functional.group_norm(inputs, num_groups, eps=eps)
    trailing = [1] * (inputs.dim() - 2)
    weight, bias = (None if each is None else each.view(*each.shape, *trailing) for each in (weight, bias))
    return _affine(step, axis, plain, weight, bias)


def _affine(step: StackedStep, axis: int, signal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift; the parameters of a device apply to the last axes of its samples."""
    if weight is not None and bias is not None and axis == 0:
        apart = unfolded(signal, 0, step.count)
        return torch.addcmul(_aligned(bias, apart), apart, _aligned(weight, apart)).flatten(0, 1)
    if weight is not None:
        signal = pointwise(torch.mul)(step, axis, signal, weight)
    return signal if bias is None else pointwise(torch.add)(step, axis, signal, bias)


def _aligned(parameter: Tensor, apart: Tensor) -> Tensor:
    """A parameter (n, *shape) that broadcasts against samples (n, B, ...)."""
    shape = parameter.shape[1:]
    if len(shape) == apart.dim() - 1:
        return parameter  # Its first axis is that of the samples, of length 1.
    return parameter.view(len(parameter), *[1] * (apart.dim() - 1 - len(shape)), *shape)


def pointwise(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The stacked form of an operation between samples and a parameter, in either order."""

    def stacked(step: StackedStep, axis: int, one: Tensor, two: Tensor, *, parameter_first: bool = False) -> Tensor:
        samples, parameter = (two, one) if parameter_first else (one, two)
        apart = unfolded(samples, axis, step.count)
        if axis:
            apart = apart.movedim(axis, 0)
        # Devices lead now, and the samples are one axis further.
        aligned = _aligned(parameter, apart)
        return folded(operation(aligned, apart) if parameter_first else operation(apart, aligned), axis)

    return stacked


def embedding(
    step: StackedStep,
    axis: int,
    numbers: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    *others: Any,
    **named: Any,
) -> Tensor:
    """Rows of each device's table, found by an offset in the joint table."""
    rows = weight.shape[1]
    apart = unfolded(numbers, axis, step.count)
    offsets = torch.arange(step.count, device=numbers.device).mul_(rows)
    offset = offsets.view(step.count, *[1] * (apart.dim() - axis - 1))
    found = functional.embedding((apart + offset).flatten(axis, axis + 1), weight.flatten(0, 1))
    if padding_idx is None:
        return found
    return torch.where((numbers == padding_idx % rows).unsqueeze(-1), found.detach(), found)


def batch_norm(
    step: StackedStep,
    layer: nn.modules.batchnorm._BatchNorm,
    inputs: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    moments: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Batch normalisation of joined channels in training mode, by the moments of each device's own samples."""
    assert layer.momentum is not None
    mean, variance, scale, shift = (
        None if each is None else each.flatten() for each in (*(moments or (None, None)), weight, bias)
    )
    return functional.batch_norm(inputs, mean, variance, scale, shift, True, layer.momentum, layer.eps)


def dropout(
    step: StackedStep,
    axis: int,
    inputs: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    order: Sequence[int],
) -> Tensor:
    """Dropout with the draws of each device; ``order`` as in `StackedStep.kept`."""
    return inputs * step.kept(inputs, axis, p, order)


def joined_dropout(
    step: StackedStep,
    inputs: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    order: Sequence[int],
    whole: bool,
) -> Tensor:
    """Dropout of joined channels; ``whole`` drops all of a channel of a sample."""
    batch, channels, *image = inputs.shape
    shape = step.count * batch, channels // step.count, *([1] * len(image) if whole else image)
    keep_layout(inputs)
    return inputs * join_channels(step, step.kept(inputs.new_empty(shape, device="meta"), 0, p, order))
