"""Gradients of the weights and biases of depthwise convolutions of all devices in Triton, with channels last.

Every error is read once, and every signal about once, because a program keeps the sums of all taps in registers. Sums
have a fixed order, which does not depend on the number of devices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of
from wayfare.engine.tuned.depthwise import Window
from wayfare.engine.tuned.depthwise_kernels import is_between

# Channels of one program, strips of an image that it adds up side by side, and columns of the result in one strip.
_CHANNELS, _LANES, _COLUMNS = 32, 2, 5


def depthwise_weights(
    error: Tensor, signal: Tensor, devices: int, window: Window, programs: int = 256
) -> tuple[Tensor, Tensor]:
    """The gradients (devices, taps, channels) of weights and (devices, channels) of biases, from that of the result.

    ``programs``: for one device, if it has as many strips. It affects speed and rounding.
    """
    channels, taps = signal.shape[3], window.kernel**2
    strips = len(signal) // devices * triton.cdiv(window.out_width, _COLUMNS)
    groups, blocks_of_channels = triton.cdiv(strips, _LANES), triton.cdiv(channels, _CHANNELS)
    groups_at_once = triton.cdiv(groups, triton.cdiv(programs, blocks_of_channels))
    parts = triton.cdiv(groups, groups_at_once)
    sums = signal.new_empty(devices, parts, taps + 1, channels, dtype=torch.float32)
    with on_device_of(signal):
        _window_sums[(devices * parts, blocks_of_channels)](
            error,
            signal,
            sums,
            window.height,
            window.width,
            window.out_height,
            window.out_width,
            channels,
            strips,
            parts,
            groups_at_once,
            window.top,
            window.left,
            kernel=window.kernel,
            stride=window.stride,
            columns=_COLUMNS,
            lanes=_LANES,
            block=_CHANNELS,
            num_warps=1,
            **ROUNDING,
        )
    total = sums.sum(dim=1)
    return total[:, :taps], total[:, taps]


_SIZES = ["height", "width", "out_height", "out_width", "strips", "parts", "groups", "top", "left"]


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _window_sums(
    error: tl.tensor,
    source: tl.tensor,
    sums: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    strips: tl.tensor,
    parts: tl.tensor,
    groups: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    columns: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """All taps, for some strips: columns next to each other of one image. It walks down the rows of a strip.

    In step i it reads row i of the errors, and the rows of the signal that the first ``stride`` rows of taps multiply
    by it. Later rows of taps multiply them by earlier errors, which stay in registers.
    """
    earlier: tl.constexpr = (kernel - 1) // stride
    device, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    per_image = tl.cdiv(out_width, columns)
    first = tl.minimum(top, kernel - 1) // stride
    steps = tl.maximum((height - 1 + top) // stride + 1, out_height)
    zero = tl.zeros((lanes, block), dtype=tl.float32)
    totals, of_bias = (zero,) * (kernel * kernel), zero
    for group in range(groups):
        strip = (part * groups + group) * lanes + tl.arange(0, lanes)
        known = (strip < strips)[:, None] & (channel < channels)
        image = device.to(tl.int64) * (strips // per_image) + strip // per_image
        column = ((strip % per_image) * columns)[:, None]
        here = error + (image * out_height * out_width)[:, None] * channels + column * channels + channel
        left_column = column * stride - left
        there = source + (image * height * width)[:, None] * channels + left_column * channels + channel
        # The latest row first.
        errors = ()
        for number in tl.static_range(earlier):
            errors += _row_of(here, first - 1 - number, column, out_height, out_width, channels, known, columns)
        of_bias += _sum_of(errors)
        for step in range(first, steps):
            latest = _row_of(here, step, column, out_height, out_width, channels, known, columns)
            errors = latest + errors
            of_bias += _sum_of(latest)
            for near in tl.static_range(stride):
                row = step * stride - top + near
                values = _row_of(
                    there, row, left_column, height, width, channels, known, (columns - 1) * stride + kernel
                )
                totals = _with_row(totals, values, errors, near, kernel, stride, columns)
            errors = errors[: earlier * columns]
    place = sums + tl.program_id(0).to(tl.int64) * (kernel * kernel + 1) * channels
    own = tl.program_id(1) * block + tl.arange(0, block)
    for tap in tl.static_range(kernel * kernel):
        tl.store(place + tap * channels + own, tl.sum(totals[tap], axis=0), mask=own < channels)
    tl.store(place + kernel * kernel * channels + own, tl.sum(of_bias, axis=0), mask=own < channels)


@triton.jit  # type: ignore[untyped-decorator]
def _row_of(
    there: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    channels: tl.tensor,
    known: tl.tensor,
    count: tl.constexpr,
) -> tl.tuple:
    """Values of a row from a column on, with zeros outside of the image."""
    found, inside = (), known & is_between(row, height)
    for number in tl.static_range(count):
        mask = inside & (column + number >= 0) & (column + number < width)
        value = tl.load(there + (row * width + number) * channels, mask=mask, other=0.0).to(tl.float32)
        found += (value,)  # type: ignore[assignment]
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _with_row(
    totals: tl.tuple,
    values: tl.tuple,
    errors: tl.tuple,
    near: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    columns: tl.constexpr,
) -> tl.tuple:
    """Add the products of a row of a signal and the rows of errors, the latest of which belongs to one row of taps."""
    found = ()
    for tap in tl.static_range(kernel * kernel):
        total = totals[tap]
        if (tap // kernel) % stride == near:
            for column in tl.static_range(columns):
                total += values[column * stride + tap % kernel] * errors[((tap // kernel) // stride) * columns + column]
        found += (total,)  # type: ignore[assignment]
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _sum_of(values: tl.tuple) -> tl.tensor:
    total = values[0]
    for number in tl.static_range(1, len(values)):
        total += values[number]
    return total
