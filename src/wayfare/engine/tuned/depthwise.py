"""Depthwise convolutions of all devices in Triton, with channels last, which PyTorch trains slowly.

Signals are (devices x batch, height, width, channels). Weights are (devices, taps, channels), or one row for all.
Kernels have three or five taps on a side, and strides are 1 or 2. Sums have a fixed order, which does not depend on the
number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of
from wayfare.engine.tuned.depthwise_kernels import convolve, strided_inputs

# Channels per program: a full line of memory in single precision.
_CHANNELS = 32
# Pairs of an image and a column per program, and rows of the result.
_PAIRS, _STRIP, _EVEN_STRIP = 32, 5, 4


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


@dataclass(frozen=True, slots=True)
class Gate:
    """Signals after a ReLU with a limit: gradients pass where it changed nothing."""

    signal: Tensor
    limit: float


def depthwise(signal: Tensor, weights: Tensor, bias: Tensor | None, window: Window, limit: float) -> Tensor:
    """min(max(w * x + b, 0), limit); without ReLU if the limit is negative. One bias per device, or one row for all."""
    return _convolve(signal, weights, bias, window, limit, None)


def depthwise_inputs(error: Tensor, weights: Tensor, window: Window, gate: Gate | None = None) -> Tensor:
    """The gradient of the signal, from that of the result; with a gate, the gradient before the ReLU of the signal."""
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
        return _convolve(error, weights.flip(1), None, turned, -1.0, gate)
    images, channels, devices = len(error), error.shape[3], len(weights)
    out = error.new_empty(images, window.height, window.width, channels)
    pairs = images // devices * ((window.width + 1) // 2)
    strips, blocks = triton.cdiv(window.height, _EVEN_STRIP), triton.cdiv(pairs, _PAIRS)
    with on_device_of(error):
        strided_inputs[(devices * blocks, triton.cdiv(channels, _CHANNELS), 2 * strips)](
            error,
            weights,
            error if gate is None else gate.signal,
            out,
            window.out_height,
            window.out_width,
            window.height,
            window.width,
            channels,
            pairs,
            blocks,
            window.left,
            -1.0 if gate is None else gate.limit,
            has_gate=gate is not None,
            top=window.top,
            kernel=window.kernel,
            pairs_at_once=_PAIRS,
            block=_CHANNELS,
            **ROUNDING,
        )
    return out


def _convolve(
    source: Tensor, weights: Tensor, bias: Tensor | None, window: Window, limit: float, gate: Gate | None
) -> Tensor:
    images, channels = len(source), source.shape[3]
    out = source.new_empty(images, window.out_height, window.out_width, channels)
    devices = max(len(weights), 1 if bias is None else len(bias))
    pairs = images // devices * window.out_width
    strips, blocks = triton.cdiv(window.out_height, _STRIP), triton.cdiv(pairs, _PAIRS)
    with on_device_of(source):
        convolve[(devices * blocks, triton.cdiv(channels, _CHANNELS), strips)](
            source,
            weights,
            weights if bias is None else bias,
            source if gate is None else gate.signal,
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
            limit if gate is None else gate.limit,
            has_bias=bias is not None,
            has_limit=limit >= 0,
            has_gate=gate is not None,
            kernel=window.kernel,
            stride=window.stride,
            pairs_at_once=_PAIRS,
            block=_CHANNELS,
            **ROUNDING,
        )
    return out
