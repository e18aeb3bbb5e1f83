"""Gradients of depthwise kernels as they were before: tuned_kernels.py compares with them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of
from wayfare.engine.tuned.depthwise import Window
from wayfare.engine.tuned.depthwise_kernels import is_between

_CHANNELS, _PAIRS, _SUMMED = 32, 32, 768
_SIZES = ["height", "width", "out_height", "out_width", "pairs", "blocks", "left"]


def depthwise_weights(error: Tensor, signal: Tensor, devices: int, window: Window) -> Tensor:
    """The gradients (devices, taps, channels) of weights, from that of the result."""
    pairs, channels = len(signal) // devices * window.out_width, signal.shape[3]
    tiles = triton.cdiv(pairs, _PAIRS // window.kernel)
    parts = triton.cdiv(pairs * window.out_height, _SUMMED)
    blocks = triton.cdiv(tiles, parts)
    sums = signal.new_empty(devices, parts, window.kernel**2, channels, dtype=torch.float32)
    with on_device_of(signal):
        weight_sums[(devices * parts, triton.cdiv(channels, _CHANNELS))](
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
            blocks,
            window.top,
            window.left,
            kernel=window.kernel,
            stride=window.stride,
            lanes=_PAIRS,
            block=_CHANNELS,
            **ROUNDING,
        )
    return sums.sum(dim=1)


@triton.jit(do_not_specialize=[*_SIZES, "parts", "top"])  # type: ignore[untyped-decorator]
def weight_sums(
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
    blocks: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """All taps, for some pairs of an image and a column. A lane is a pair and one of the columns of the kernel."""
    device, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    inside = channel < channels
    lane = tl.arange(0, lanes)
    tap_column, near = lane % kernel, lane // kernel
    one = tl.zeros((lanes, block), dtype=tl.float32)
    two, three, four, five = one, one, one, one
    for number in range(blocks):
        pair = (part * blocks + number) * (lanes // kernel) + near
        known = ((near < lanes // kernel) & (pair < pairs))[:, None] & inside
        image, column = device.to(tl.int64) * (pairs // out_width) + pair // out_width, pair % out_width
        from_column = column * stride + tap_column - left
        found = known & ((from_column >= 0) & (from_column < width))[:, None]
        here = error + (image * out_height * out_width + column)[:, None] * channels + channel
        there = source + (image * height * width + from_column)[:, None] * channels + channel
        if stride == 1:
            # Every value is read once: the last rows of the gradient stay in registers.
            late = _row_of(here, top - 1, out_height, out_width, channels, known)
            later = _row_of(here, top - 2, out_height, out_width, channels, known)
            latest, last = late, late
            if kernel > 3:
                latest = _row_of(here, top - 3, out_height, out_width, channels, known)
                last = _row_of(here, top - 4, out_height, out_width, channels, known)
            for row in range(0, height, 5):
                # Ten reads at once, which do not wait for each other.
                passed1 = _row_of(here, row + top, out_height, out_width, channels, known)
                passed2 = _row_of(here, row + top + 1, out_height, out_width, channels, known)
                passed3 = _row_of(here, row + top + 2, out_height, out_width, channels, known)
                passed4 = _row_of(here, row + top + 3, out_height, out_width, channels, known)
                passed5 = _row_of(here, row + top + 4, out_height, out_width, channels, known)
                value1 = _row_of(there, row, height, width, channels, found)
                value2 = _row_of(there, row + 1, height, width, channels, found)
                value3 = _row_of(there, row + 2, height, width, channels, found)
                value4 = _row_of(there, row + 3, height, width, channels, found)
                value5 = _row_of(there, row + 4, height, width, channels, found)
                one += value1 * passed1 + value2 * passed2 + value3 * passed3 + value4 * passed4 + value5 * passed5
                two += value1 * late + value2 * passed1 + value3 * passed2 + value4 * passed3 + value5 * passed4
                three += value1 * later + value2 * late + value3 * passed1 + value4 * passed2 + value5 * passed3
                if kernel > 3:
                    four += value1 * latest + value2 * later + value3 * late + value4 * passed1 + value5 * passed2
                    five += value1 * last + value2 * latest + value3 * later + value4 * late + value5 * passed1
                    last, latest = passed2, passed3
                later, late = passed4, passed5
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
    channel = tl.program_id(1) * block + tl.arange(0, block)
    for tap in tl.static_range(kernel):
        mine = (tap_column == tap)[:, None] & (near < lanes // kernel)[:, None]
        place = sums + (tl.program_id(0).to(tl.int64) * kernel * kernel + tap) * channels + channel
        _summed(place, one, mine, channel < channels)
        _summed(place + kernel * channels, two, mine, channel < channels)
        _summed(place + 2 * kernel * channels, three, mine, channel < channels)
        if kernel > 3:
            _summed(place + 3 * kernel * channels, four, mine, channel < channels)
            _summed(place + 4 * kernel * channels, five, mine, channel < channels)


@triton.jit  # type: ignore[untyped-decorator]
def _summed(place: tl.tensor, total: tl.tensor, mine: tl.tensor, inside: tl.tensor) -> None:
    tl.store(place, tl.sum(tl.where(mine, total, 0.0), axis=0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _row_of(
    there: tl.tensor, row: tl.tensor, height: tl.tensor, width: tl.tensor, channels: tl.tensor, found: tl.tensor
) -> tl.tensor:
    return tl.load(there + row * width * channels, mask=found & is_between(row, height), other=0.0).to(tl.float32)
