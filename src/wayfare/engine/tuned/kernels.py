"""Triton kernels for signals with channels last: depthwise convolutions, and biases with ReLU.

Signals are (devices x batch, height, width, channels). Weights are (devices, taps, channels), or one row for all.
Sums have a fixed order, which does not depend on the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Channels per program: a full line of memory in single precision.
_CHANNELS = 32
_MOST_POSITIONS = 128
_GRADIENT_POSITIONS = 16
# Positions whose products one program adds up.
_SUMMED = 512
_ROWS, _SUMMED_ROWS = 64, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A depthwise convolution: kernel size, stride, zeros above and to the left of an image, and sizes of images."""

    kernel: int
    stride: int
    top: int
    left: int
    height: int
    width: int
    out_height: int
    out_width: int


def depthwise(signal: Tensor, weights: Tensor, bias: Tensor | None, window: Window, limit: float) -> Tensor:
    """min(max(w * x + b, 0), limit); without ReLU if the limit is negative. One bias per device, or one row for all."""
    shape = len(signal), window.out_height, window.out_width, signal.shape[3]
    return _convolve(signal, weights, bias, window, signal.new_empty(shape), limit, backward=False)


def depthwise_inputs(error: Tensor, weights: Tensor, window: Window) -> Tensor:
    """The gradient of the signal, from that of the result."""
    shape = len(error), window.height, window.width, error.shape[3]
    return _convolve(error, weights, None, window, error.new_empty(shape), -1.0, backward=True)


def _convolve(
    source: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    window: Window,
    out: Tensor,
    limit: float,
    *,
    backward: bool,
) -> Tensor:
    images, height, width, channels = out.shape
    positions = min(triton.next_power_of_2(height * width), _MOST_POSITIONS)
    blocks = triton.cdiv(height * width, positions)
    with on_device_of(source):
        _depthwise[(images * blocks, triton.cdiv(channels, _CHANNELS))](
            source,
            weights,
            weights if bias is None else bias,
            out,
            source.shape[1],
            source.shape[2],
            height,
            width,
            channels,
            images // len(weights),
            images if bias is None else images // len(bias),
            blocks,
            window.top,
            window.left,
            limit,
            has_bias=bias is not None,
            has_limit=limit >= 0,
            kernel=window.kernel,
            stride=window.stride,
            backward=backward,
            positions=positions,
            block=_CHANNELS,
            **ROUNDING,
        )
    return out


def depthwise_weights(error: Tensor, signal: Tensor, devices: int, window: Window) -> Tensor:
    """The gradients (devices, taps, channels) of weights, from that of the result."""
    batch, channels = len(signal) // devices, signal.shape[3]
    out_positions = window.out_height * window.out_width
    images = max(_SUMMED // out_positions, 1)
    parts = triton.cdiv(batch, images)
    sums = signal.new_empty(devices, parts, window.kernel**2, channels, dtype=torch.float32)
    with on_device_of(signal):
        _weights[(devices * parts, triton.cdiv(channels, _CHANNELS), window.kernel)](
            error,
            signal,
            sums,
            window.height,
            window.width,
            out_positions,
            window.out_width,
            channels,
            batch,
            parts,
            window.top,
            window.left,
            images=images,
            kernel=window.kernel,
            stride=window.stride,
            columns=triton.next_power_of_2(window.kernel),
            positions=_GRADIENT_POSITIONS,
            block=_CHANNELS,
            **ROUNDING,
        )
    return sums.sum(dim=1)


def activate_(rows: Tensor, bias: Tensor | None, limit: float) -> None:
    """Add biases (devices, channels), or one row for all, to rows (devices, rows, channels); then ReLU, in place."""
    devices, count, channels = rows.shape
    with on_device_of(rows):
        _activate[(devices * triton.cdiv(count, _ROWS), triton.cdiv(channels, _CHANNELS))](
            rows,
            rows if bias is None else bias,
            count,
            channels,
            0 if bias is None or len(bias) == 1 else 1,
            limit,
            has_bias=bias is not None,
            has_limit=limit >= 0,
            rows=_ROWS,
            block=_CHANNELS,
            **ROUNDING,
        )


def before_activation(error: Tensor, out: Tensor, limit: float, *, summed: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient before ReLU, from the results (devices, rows, channels) after it; and its sum over the rows."""
    devices, count, channels = out.shape
    parts = triton.cdiv(count, _SUMMED_ROWS)
    passed = torch.empty_like(out) if limit >= 0 else error
    sums = out.new_empty(devices, parts, channels, dtype=torch.float32) if summed else None
    with on_device_of(out):
        _before_activation[(devices * parts, triton.cdiv(channels, _CHANNELS))](
            error,
            out,
            passed,
            passed if sums is None else sums,
            count,
            channels,
            parts,
            limit,
            has_limit=limit >= 0,
            summed=summed,
            rows=_ROWS,
            part=_SUMMED_ROWS,
            block=_CHANNELS,
            **ROUNDING,
        )
    return passed, None if sums is None else sums.sum(dim=1)


@triton.jit  # type: ignore[untyped-decorator]
def _activated(value: tl.tensor, limit: tl.tensor) -> tl.tensor:
    # Written so that NaN stays NaN.
    return tl.where(value <= 0, 0.0, tl.where(value >= limit, limit, value))


_SIZES = ["height", "width", "out_height", "out_width", "batch", "bias_batch", "blocks", "top", "left"]


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _depthwise(
    source: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    batch: tl.tensor,
    bias_batch: tl.tensor,
    blocks: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    limit: tl.tensor,
    has_bias: tl.constexpr,
    has_limit: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    backward: tl.constexpr,
    positions: tl.constexpr,
    block: tl.constexpr,
) -> None:
    image = tl.program_id(0) // blocks
    at = (tl.program_id(0) % blocks) * positions + tl.arange(0, positions)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = channel < channels
    row, column = at // out_width, at % out_width
    known = at < out_height * out_width
    source += image.to(tl.int64) * height * width * channels
    weights += (image // batch).to(tl.int64) * (kernel * kernel) * channels
    total = tl.zeros((positions, block), dtype=tl.float32)
    for tap_row in tl.static_range(kernel):
        for tap_column in tl.static_range(kernel):
            if backward:
                from_row, from_column = row + top - tap_row, column + left - tap_column
                found = known & (from_row >= 0) & (from_column >= 0)
                if stride > 1:
                    found = found & (from_row % stride == 0) & (from_column % stride == 0)
                    from_row, from_column = from_row // stride, from_column // stride
            else:
                from_row, from_column = row * stride + tap_row - top, column * stride + tap_column - left
                found = known & (from_row >= 0) & (from_column >= 0)
            found = found & (from_row < height) & (from_column < width)
            value = tl.load(
                source + ((from_row * width + from_column) * channels)[:, None] + channel[None, :],
                mask=found[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            tap = tap_row * kernel + tap_column
            weight = tl.load(weights + tap * channels + channel, mask=inside, other=0.0)
            total += value * weight[None, :]
    if has_bias:
        total += tl.load(bias + (image // bias_batch) * channels + channel, mask=inside, other=0.0)[None, :]
    if has_limit:
        total = _activated(total, limit)
    place = image.to(tl.int64) * out_height * out_width * channels
    tl.store(
        out + place + (at * channels)[:, None] + channel[None, :],
        total.to(out.dtype.element_ty),
        mask=known[:, None] & inside[None, :],
    )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "out_positions", "out_width", "batch", "parts", "top", "left"]
)
def _weights(
    error: tl.tensor,
    source: tl.tensor,
    sums: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_positions: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    batch: tl.tensor,
    parts: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    images: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    columns: tl.constexpr,
    positions: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """One row of a kernel, over some images of a device."""
    device, first = tl.program_id(0) // parts, (tl.program_id(0) % parts) * images
    channel, tap_row = tl.program_id(1) * block + tl.arange(0, block), tl.program_id(2)
    tap_column, near = tl.arange(0, columns), tl.arange(0, positions)
    inside = channel < channels
    total = tl.zeros((columns, positions, block), dtype=tl.float32)
    for number in range(first, tl.minimum(first + images, batch)):
        image = (device * batch + number).to(tl.int64)
        here, there = error + image * out_positions * channels, source + image * height * width * channels
        for start in range(0, out_positions, positions):
            at = start + near
            known = at < out_positions
            passed = tl.load(
                here + (at * channels)[:, None] + channel[None, :], mask=known[:, None] & inside[None, :], other=0.0
            ).to(tl.float32)
            row = (at // out_width) * stride + tap_row - top
            column = ((at % out_width) * stride - left)[None, :] + tap_column[:, None]
            found = (known & (row >= 0) & (row < height))[None, :] & (column >= 0) & (column < width)
            found = found & (tap_column < kernel)[:, None]
            place = ((row * width)[None, :] + column) * channels
            value = tl.load(
                there + place[:, :, None] + channel[None, None, :],
                mask=found[:, :, None] & inside[None, None, :],
                other=0.0,
            ).to(tl.float32)
            total += value * passed[None, :, :]
    place = (tl.program_id(0).to(tl.int64) * kernel + tap_row) * kernel * channels
    tl.store(
        sums + place + tap_column[:, None] * channels + channel[None, :],
        tl.sum(total, axis=1),
        mask=(tap_column < kernel)[:, None] & inside[None, :],
    )


@triton.jit(do_not_specialize=["count", "by_device"])  # type: ignore[untyped-decorator]
def _activate(
    signal: tl.tensor,
    bias: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    by_device: tl.tensor,
    limit: tl.tensor,
    has_bias: tl.constexpr,
    has_limit: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    parts = tl.cdiv(count, rows)
    device = tl.program_id(0) // parts
    row = (tl.program_id(0) % parts) * rows + tl.arange(0, rows)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = channel < channels
    here = signal + device.to(tl.int64) * count * channels + (row * channels)[:, None] + channel[None, :]
    known = (row < count)[:, None] & inside[None, :]
    value = tl.load(here, mask=known, other=0.0).to(tl.float32)
    if has_bias:
        value += tl.load(bias + device * by_device * channels + channel, mask=inside, other=0.0)[None, :]
    if has_limit:
        value = _activated(value, limit)
    tl.store(here, value.to(signal.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["count", "parts"])  # type: ignore[untyped-decorator]
def _before_activation(
    error: tl.tensor,
    out: tl.tensor,
    passed: tl.tensor,
    sums: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    parts: tl.tensor,
    limit: tl.tensor,
    has_limit: tl.constexpr,
    summed: tl.constexpr,
    rows: tl.constexpr,
    part: tl.constexpr,
    block: tl.constexpr,
) -> None:
    device, first = tl.program_id(0) // parts, (tl.program_id(0) % parts) * part
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = channel < channels
    base = device.to(tl.int64) * count * channels
    total = tl.zeros((rows, block), dtype=tl.float32)
    for start in range(first, tl.minimum(first + part, count), rows):
        row = start + tl.arange(0, rows)
        place = base + (row * channels)[:, None] + channel[None, :]
        known = (row < count)[:, None] & inside[None, :]
        value = tl.load(error + place, mask=known, other=0.0).to(tl.float32)
        if has_limit:
            result = tl.load(out + place, mask=known, other=0.0).to(tl.float32)
            value = tl.where((result <= 0) | (result >= limit), 0.0, value)
            tl.store(passed + place, value.to(passed.dtype.element_ty), mask=known)
        total += value
    if summed:
        tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, axis=0), mask=inside)
