"""Triton kernels for signals with channels last: depthwise convolutions, and biases with ReLU.

Signals are (devices x batch, height, width, channels). Weights are (devices, taps, channels), or one row for all.
Sums have a fixed order, which does not depend on the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Channels per program: a full line of memory in single precision.
_CHANNELS = 32
# Pairs of an image and a column per program, and rows of the result.
_PAIRS, _STRIP = 32, 5
_MOST_POSITIONS = 128
_WARPS = 4
# Positions whose products one program adds up.
_SUMMED = 768
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
    return _convolve(signal, weights, bias, window, limit)


def depthwise_inputs(error: Tensor, weights: Tensor, window: Window) -> Tensor:
    """The gradient of the signal, from that of the result."""
    if window.stride == 1:
        # It is the convolution with reversed taps.
        turned = replace(
            window,
            top=window.kernel - 1 - window.top,
            left=window.kernel - 1 - window.left,
            height=window.out_height,
            width=window.out_width,
            out_height=window.height,
            out_width=window.width,
        )
        return _convolve(error, weights.flip(1), None, turned, -1.0)
    images, channels = len(error), error.shape[3]
    out = error.new_empty(images, window.height, window.width, channels)
    positions = min(triton.next_power_of_2(window.height * window.width), _MOST_POSITIONS)
    blocks = triton.cdiv(window.height * window.width, positions)
    with on_device_of(error):
        _strided_inputs[(images * blocks, triton.cdiv(channels, _CHANNELS))](
            error,
            weights,
            out,
            window.out_height,
            window.out_width,
            window.height,
            window.width,
            channels,
            images // len(weights),
            blocks,
            window.top,
            window.left,
            kernel=window.kernel,
            stride=window.stride,
            positions=positions,
            block=_CHANNELS,
            num_warps=_WARPS,
            **ROUNDING,
        )
    return out


def _convolve(source: Tensor, weights: Tensor, bias: Tensor | None, window: Window, limit: float) -> Tensor:
    images, channels = len(source), source.shape[3]
    out = source.new_empty(images, window.out_height, window.out_width, channels)
    devices = max(len(weights), 1 if bias is None else len(bias))
    pairs = images // devices * window.out_width
    strips, blocks = triton.cdiv(window.out_height, _STRIP), triton.cdiv(pairs, _PAIRS)
    with on_device_of(source):
        _depthwise[(devices * blocks, triton.cdiv(channels, _CHANNELS), strips)](
            source,
            weights,
            weights if bias is None else bias,
            out,
            window.height,
            window.width,
            window.out_height,
            window.out_width,
            channels,
            pairs,
            blocks,
            0 if len(weights) == 1 else 1,
            0 if bias is None or len(bias) == 1 else 1,
            window.top,
            window.left,
            limit,
            has_bias=bias is not None,
            has_limit=limit >= 0,
            kernel=window.kernel,
            stride=window.stride,
            pairs_at_once=_PAIRS,
            block=_CHANNELS,
            num_warps=_WARPS,
            **ROUNDING,
        )
    return out


def depthwise_weights(error: Tensor, signal: Tensor, devices: int, window: Window) -> Tensor:
    """The gradients (devices, taps, channels) of weights, from that of the result."""
    pairs, channels = len(signal) // devices * window.out_width, signal.shape[3]
    blocks = max(_SUMMED // (_PAIRS * window.out_height), 1)
    parts = triton.cdiv(pairs, blocks * _PAIRS)
    sums = signal.new_empty(devices, parts, window.kernel**2, channels, dtype=torch.float32)
    with on_device_of(signal):
        _weights[(devices * parts, triton.cdiv(channels, _CHANNELS), window.kernel)](
            error,
            signal,
            sums,
            window.height,
            window.width,
            window.out_height,
            window.out_width,
            channels,
            pairs,
            parts,
            window.top,
            window.left,
            kernel=window.kernel,
            stride=window.stride,
            blocks=blocks,
            pairs_at_once=_PAIRS,
            block=_CHANNELS,
            num_warps=_WARPS,
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
            num_warps=_WARPS,
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
            num_warps=_WARPS,
            **ROUNDING,
        )
    return passed, None if sums is None else sums.sum(dim=1)


@triton.jit  # type: ignore[untyped-decorator]
def _activated(value: tl.tensor, limit: tl.tensor) -> tl.tensor:
    # Written so that NaN stays NaN.
    return tl.where(value <= 0, 0.0, tl.where(value >= limit, limit, value))


@triton.jit  # type: ignore[untyped-decorator]
def _is_between(row: tl.tensor, height: tl.tensor) -> tl.tensor:
    """Whether a row is inside an image, as a block: the interpreter cannot combine a block and a single truth value."""
    block = row + tl.zeros((1, 1), dtype=tl.int32)
    return (block >= 0) & (block < height)


_SIZES = ["height", "width", "out_height", "out_width", "pairs", "blocks", "parts", "top", "left"]
_FLAGS = ["by_device", "bias_by_device"]


@triton.jit  # type: ignore[untyped-decorator]
def _stored(
    out: tl.tensor,
    total: tl.tensor,
    shift: tl.tensor,
    limit: tl.tensor,
    mask: tl.tensor,
    has_limit: tl.constexpr,
) -> None:
    total += shift[None, :]
    if has_limit:
        total = _activated(total, limit)
    tl.store(out, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=[*_SIZES[:6], *_FLAGS, "top", "left"])  # type: ignore[untyped-decorator]
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
    pairs: tl.tensor,
    blocks: tl.tensor,
    by_device: tl.tensor,
    bias_by_device: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    limit: tl.tensor,
    has_bias: tl.constexpr,
    has_limit: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    pairs_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Five rows of the result, for pairs of an image and a column: every value read serves all rows that need it."""
    device = tl.program_id(0) // blocks
    pair = (tl.program_id(0) % blocks) * pairs_at_once + tl.arange(0, pairs_at_once)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    first = tl.program_id(2) * 5
    known, inside = pair < pairs, channel < channels
    image, column = (device.to(tl.int64) * (pairs // out_width) + pair // out_width), pair % out_width
    here = source + (image * height * width + column * stride - left)[:, None] * channels + channel[None, :]
    weights += device.to(tl.int64) * by_device * (kernel * kernel) * channels + channel
    one = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    two = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    three = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    four = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    five = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    for tap_column in tl.static_range(kernel):
        from_column = column * stride + tap_column - left
        found = (known & (from_column >= 0) & (from_column < width))[:, None] & inside[None, :]
        for number in tl.static_range(kernel + 4 * stride):
            row = first * stride + number - top
            value = tl.load(
                here + (row * width + tap_column) * channels, mask=found & _is_between(row, height), other=0.0
            ).to(tl.float32)
            # The tap of the first of the rows is the number itself.
            taps = weights + (number * kernel + tap_column) * channels
            if number < kernel:
                one += value * tl.load(taps, mask=inside, other=0.0)[None, :]
            if number >= stride and number < kernel + stride:
                two += value * tl.load(taps - stride * kernel * channels, mask=inside, other=0.0)[None, :]
            if number >= 2 * stride and number < kernel + 2 * stride:
                three += value * tl.load(taps - 2 * stride * kernel * channels, mask=inside, other=0.0)[None, :]
            if number >= 3 * stride and number < kernel + 3 * stride:
                four += value * tl.load(taps - 3 * stride * kernel * channels, mask=inside, other=0.0)[None, :]
            if number >= 4 * stride:
                five += value * tl.load(taps - 4 * stride * kernel * channels, mask=inside, other=0.0)[None, :]
    shift = tl.zeros((block,), dtype=tl.float32)
    if has_bias:
        shift = tl.load(bias + device * bias_by_device * channels + channel, mask=inside, other=0.0)
    place = out + (image * out_height * out_width + first * out_width + column)[:, None] * channels + channel[None, :]
    mask, next_row = known[:, None] & inside[None, :], out_width * channels
    _stored(place, one, shift, limit, mask, has_limit)
    _stored(place + next_row, two, shift, limit, mask & _is_between(first + 1, out_height), has_limit)
    _stored(place + 2 * next_row, three, shift, limit, mask & _is_between(first + 2, out_height), has_limit)
    _stored(place + 3 * next_row, four, shift, limit, mask & _is_between(first + 3, out_height), has_limit)
    _stored(place + 4 * next_row, five, shift, limit, mask & _is_between(first + 4, out_height), has_limit)


@triton.jit(do_not_specialize=[*_SIZES[:4], "batch", "blocks", "top", "left"])  # type: ignore[untyped-decorator]
def _strided_inputs(
    source: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    batch: tl.tensor,
    blocks: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    kernel: tl.constexpr,
    stride: tl.constexpr,
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
            from_row, from_column = row + top - tap_row, column + left - tap_column
            found = known & (from_row >= 0) & (from_column >= 0)
            found = found & (from_row % stride == 0) & (from_column % stride == 0)
            from_row, from_column = from_row // stride, from_column // stride
            found = found & (from_row < height) & (from_column < width)
            value = tl.load(
                source + ((from_row * width + from_column) * channels)[:, None] + channel[None, :],
                mask=found[:, None] & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            tap = tap_row * kernel + tap_column
            weight = tl.load(weights + tap * channels + channel, mask=inside, other=0.0)
            total += value * weight[None, :]
    place = image.to(tl.int64) * out_height * out_width * channels
    tl.store(
        out + place + (at * channels)[:, None] + channel[None, :],
        total.to(out.dtype.element_ty),
        mask=known[:, None] & inside[None, :],
    )


@triton.jit(do_not_specialize=[*_SIZES[:5], "parts", "top", "left"])  # type: ignore[untyped-decorator]
def _weights(
    error: tl.tensor,
    source: tl.tensor,
    sums: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    pairs: tl.tensor,
    parts: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    blocks: tl.constexpr,
    pairs_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """One column of a kernel, for some pairs of an image and a column: five taps at most."""
    device, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    channel, tap_column = tl.program_id(1) * block + tl.arange(0, block), tl.program_id(2)
    inside = channel < channels
    one = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    two = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    three = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    four = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    five = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    for number in range(blocks):
        pair = (part * blocks + number) * pairs_at_once + tl.arange(0, pairs_at_once)
        known = (pair < pairs)[:, None] & inside[None, :]
        image, column = device.to(tl.int64) * (pairs // out_width) + pair // out_width, pair % out_width
        from_column = column * stride + tap_column - left
        found = known & ((from_column >= 0) & (from_column < width))[:, None]
        here = error + (image * out_height * out_width + column)[:, None] * channels + channel[None, :]
        there = source + (image * height * width + from_column)[:, None] * channels + channel[None, :]
        if stride == 1:
            # Every value is read once: the last rows of the gradient stay in registers.
            late = _row_of(here, top - 1, out_height, out_width, channels, known)
            later = _row_of(here, top - 2, out_height, out_width, channels, known)
            if kernel > 3:
                latest = _row_of(here, top - 3, out_height, out_width, channels, known)
                last = _row_of(here, top - 4, out_height, out_width, channels, known)
            for row in range(height):
                passed = _row_of(here, row + top, out_height, out_width, channels, known)
                value = _row_of(there, row, height, width, channels, found)
                one += value * passed
                two += value * late
                three += value * later
                if kernel > 3:
                    four += value * latest
                    five += value * last
                    last, latest = latest, later
                later, late = late, passed
        else:
            for row in range(out_height):
                passed = _row_of(here, row, out_height, out_width, channels, known)
                above = row * stride - top
                one += passed * _row_of(there, above, height, width, channels, found)
                two += passed * _row_of(there, above + 1, height, width, channels, found)
                three += passed * _row_of(there, above + 2, height, width, channels, found)
                if kernel > 3:
                    four += passed * _row_of(there, above + 3, height, width, channels, found)
                    five += passed * _row_of(there, above + 4, height, width, channels, found)
    place = sums + (tl.program_id(0).to(tl.int64) * kernel * kernel + tap_column) * channels + channel
    tl.store(place, tl.sum(one, axis=0), mask=inside)
    tl.store(place + kernel * channels, tl.sum(two, axis=0), mask=inside)
    tl.store(place + 2 * kernel * channels, tl.sum(three, axis=0), mask=inside)
    if kernel > 3:
        tl.store(place + 3 * kernel * channels, tl.sum(four, axis=0), mask=inside)
        tl.store(place + 4 * kernel * channels, tl.sum(five, axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _row_of(
    there: tl.tensor, row: tl.tensor, height: tl.tensor, width: tl.tensor, channels: tl.tensor, found: tl.tensor
) -> tl.tensor:
    return tl.load(there + row * width * channels, mask=found & _is_between(row, height), other=0.0).to(tl.float32)


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
