"""Triton kernels for 3x3 convolutions of many devices, as products of tiles (implicit GEMM).

The layouts make every operand a matrix from which the copy engine of a GPU fetches rectangles:

- signals (devices, height, width + 1, batch, channels) with a column of zeros at the end of every row, which is also
  the border to the left of the next row. A tap of the kernel shifts a tile by whole positions, so its rows stay
  adjacent. Taps beyond the upper or lower border are skipped.
- turned signals (devices, channels, height, width + 1, batch): needed for gradients of weights in TF32, where matrix
  units only read operands whose summed axis is adjacent in memory.
- weights (devices, outputs, taps, inputs) with nine taps, or one for products of single positions. Gradients of signals
  need turned weights in TF32, for the same reason.

Sums have a fixed order: programs do not share results, and parts of a weight gradient are added in order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# Fused multiply-add rounds once. Versions of Triton have different defaults.
_ROUNDING = {"enable_fp_fusion": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The block of results of one program, and how it is computed. It affects speed and rounding."""

    positions: int  # adjacent (column, image) pairs of a row
    outputs: int  # channels of the result
    inputs: int  # channels per step of the sum
    warps: int
    stages: int  # steps of the sum in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTile:
    """The block of a weight gradient of one program, and how it is computed."""

    outputs: int
    inputs: int
    positions: int  # adjacent (column, image) pairs per step of the sum
    parts: int  # the sum over positions is cut into this many parts
    row_of_taps: bool = False  # three taps per program, which read the same gradients, instead of one
    warps: int
    stages: int


def padded_signal(signal: Tensor) -> Tensor:
    """A copy (devices, height, width + 1, batch, channels) of signals (devices, height, width, batch, channels)."""
    return torch.nn.functional.pad(signal, (0, 0, 0, 0, 0, 1))


def turned_signal(signal: Tensor) -> Tensor:
    """A copy (devices, channels, height, width + 1, batch) of padded signals."""
    return signal.permute(0, 4, 1, 2, 3).contiguous()


def turned_weights(weights: Tensor) -> Tensor:
    """Weights (devices, inputs, taps, outputs) with reversed taps: they turn `convolve` into its gradient."""
    return weights.flip(2).transpose(1, 3).contiguous()


def tiles_per_device(signal: Tensor, tile: Tile) -> int:
    _, height, columns, batch, _ = signal.shape
    return height * ((columns - 1) * batch // tile.positions)


def convolve(
    signal: Tensor,
    weights: Tensor,
    out: Tensor,
    tile: Tile,
    moments: Tensor | None = None,
    *,
    backward: bool = False,
    added: bool = False,
) -> None:
    """Convolve padded signals with weights (devices, outputs, taps, inputs), as `conv2d(padding=1)` with nine taps.

    Writes all but the zeros of the padded ``out``, or adds to it if ``added``. ``moments`` (devices, tiles, 2,
    outputs), if given, takes the mean of every tile and channel and the sum of squares about it. ``backward`` gives the
    gradient of signals from the weights of the forward pass; in TF32 turned weights are faster.
    """
    devices, height, columns, batch, inputs = signal.shape
    _, outputs, taps, expected = weights.shape
    if backward:
        outputs, expected = expected, outputs
    if expected != inputs:
        raise ValueError(f"weights {tuple(weights.shape)} do not fit signals {tuple(signal.shape)}")
    if ((columns - 1) * batch) % tile.positions or outputs % tile.outputs or inputs % tile.inputs:
        raise ValueError(f"{tile} does not divide {tuple(signal.shape)} and {tuple(weights.shape)}")
    with on_device_of(signal):
        _convolve[(devices * tiles_per_device(signal, tile) * (outputs // tile.outputs),)](
            _rectangles(signal.view(-1, inputs), tile.positions, tile.inputs),
            _rectangles(weights.view(devices * inputs, -1), tile.inputs, tile.outputs)
            if backward
            else _rectangles(weights.view(devices * outputs, -1), tile.outputs, tile.inputs),
            out,
            out if moments is None else moments,
            height,
            columns - 1,
            batch,
            inputs,
            outputs,
            nine=taps == 9,
            has_moments=moments is not None,
            backward=backward,
            added=added,
            positions=tile.positions,
            block_outputs=tile.outputs,
            block_inputs=tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **_ROUNDING,
        )


def weight_gradient(gradient: Tensor, signal: Tensor, taps: int, tile: WeightTile, *, turned: bool = False) -> Tensor:
    """The gradient (devices, outputs, taps, inputs) of weights in float32, from padded or turned signals."""
    if turned:
        devices, outputs, height, columns, batch = gradient.shape
        inputs = signal.shape[1]
    else:
        devices, height, columns, batch, outputs = gradient.shape
        inputs = signal.shape[4]
    together = 3 if tile.row_of_taps else 1
    # Single taps of turned signals skip columns beyond a border, so no step may have two columns.
    adjacent = batch if turned and not tile.row_of_taps else (columns - 1) * batch
    if adjacent % tile.positions or outputs % tile.outputs or inputs % tile.inputs or taps % together:
        raise ValueError(f"{tile} does not divide {tuple(gradient.shape)} and {tuple(signal.shape)}")
    sums = gradient.new_empty(tile.parts, devices, outputs, taps, inputs, dtype=torch.float32)
    if turned:
        one = _rectangles(gradient.view(devices * outputs, -1), tile.outputs, tile.positions)
        other = _rectangles(signal.view(devices * inputs, -1), tile.inputs, tile.positions)
    else:
        one = _rectangles(gradient.view(-1, outputs), tile.positions, tile.outputs)
        other = _rectangles(signal.view(-1, inputs), tile.positions, tile.inputs)
    with on_device_of(signal):
        blocks = (outputs // tile.outputs) * (inputs // tile.inputs)
        _weight_gradient[(tile.parts * devices * (taps // together) * blocks,)](
            one,
            other,
            sums,
            height,
            columns - 1,
            batch,
            outputs,
            inputs,
            devices,
            tile.parts,
            nine=taps == 9,
            together=together,
            turned=turned,
            positions=tile.positions,
            block_outputs=tile.outputs,
            block_inputs=tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **_ROUNDING,
        )
    return sums[0] if tile.parts == 1 else sums.sum(dim=0)


def _rectangles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def on_device_of(signal: Tensor) -> AbstractContextManager[None]:
    """Make the GPU of a signal the current one, on which Triton launches."""
    return torch.cuda.device(signal.device) if signal.is_cuda else nullcontext()


# One compilation serves all sizes.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "batch", "inputs", "outputs"], do_not_specialize_on_alignment=["moments"]
)
def _convolve(
    signal: tl.tensor_descriptor,
    weights: tl.tensor_descriptor,
    out: tl.tensor,
    moments: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    nine: tl.constexpr,
    has_moments: tl.constexpr,
    backward: tl.constexpr,
    added: tl.constexpr,
    positions: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
) -> None:
    blocks, across = outputs // block_outputs, width * batch // positions
    # Tells the compiler that it may write several values at a time.
    outputs = blocks * block_outputs
    tiles = height * across
    # Programs that run at the same time share weights, and neighbouring ones signals.
    program = tl.program_id(0)
    channel = (program % blocks) * block_outputs
    tile = (program // blocks) % tiles
    device = program // (blocks * tiles)
    row = tile // across
    at_row = ((device * height + row) * (width + 1)) * batch + (tile % across) * positions
    steps = inputs // block_inputs
    first, taps = 0, 1
    if nine:
        first = tl.where(row == 0, 3, 0)
        taps = tl.where(row == height - 1, 6, 9) - first
    total = tl.zeros((positions, block_outputs), dtype=tl.float32)
    for step in range(0, taps * steps):
        tap = first + step // steps
        at_input = (step % steps) * block_inputs
        at = at_row
        if nine:
            at += ((tap // 3 - 1) * (width + 1) + tap % 3 - 1) * batch
        one = signal.load([at, at_input])
        if backward:
            opposite = tap
            if nine:
                opposite = 8 - tap
            other = weights.load([device * inputs + at_input, opposite * outputs + channel])
            total = tl.dot(one, other, total, input_precision="tf32")
        else:
            other = weights.load([device * outputs + channel, tap * inputs + at_input])
            total = tl.dot(one, other.T, total, input_precision="tf32")
    at_output = (at_row + tl.arange(0, positions)).to(tl.int64)[:, None] * outputs + channel
    at_output += tl.arange(0, block_outputs)[None, :]
    if added:
        total += tl.load(out + at_output).to(tl.float32)
    if has_moments:
        mean = tl.sum(total, axis=0) / positions
        away = total - mean[None, :]
        squares = tl.sum(away * away, axis=0)
        place = moments + (device * tiles + tile).to(tl.int64) * 2 * outputs + channel + tl.arange(0, block_outputs)
        tl.store(place, mean)
        tl.store(place + outputs, squares)
    tl.store(out + at_output, total.to(out.dtype.element_ty))


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "batch", "outputs", "inputs", "devices", "parts"]
)
def _weight_gradient(
    gradient: tl.tensor_descriptor,
    signal: tl.tensor_descriptor,
    sums: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    devices: tl.tensor,
    parts: tl.tensor,
    nine: tl.constexpr,
    together: tl.constexpr,
    turned: tl.constexpr,
    positions: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
) -> None:
    """dW[o, tap, i] = sum over positions p of dy[p, o] x[p + tap, i]."""
    taps: tl.constexpr = 9 if nine else 1
    groups: tl.constexpr = taps // together
    # Tells the compiler that it may write several values at a time.
    inputs = (inputs // block_inputs) * block_inputs
    # Programs that run at the same time read the same positions of one device.
    program = tl.program_id(0)
    output = (program % (outputs // block_outputs)) * block_outputs
    program = program // (outputs // block_outputs)
    channel = (program % (inputs // block_inputs)) * block_inputs
    program = program // (inputs // block_inputs)
    tap = (program % groups) * together
    part = (program // groups) % parts
    device = program // (groups * parts)
    down, right = 0, 0
    if nine:
        down, right = tap // 3 - 1, tap % 3 - 1
    # Rows whose neighbour lies beyond a border add nothing, and nor do such columns.
    top, left, across = tl.maximum(0, -down), 0, width * batch // positions
    if turned and together == 1:
        left, across = tl.maximum(0, -right), (width - tl.abs(right)) * batch // positions
    steps = (height - tl.abs(down)) * across
    share = tl.cdiv(steps, parts)
    begin = part * share
    shift = (down * (width + 1) + right) * batch
    total = tl.zeros((block_outputs, block_inputs), dtype=tl.float32)
    # Only used for a row of taps.
    middle, last = total, total
    for step in range(begin, tl.minimum(begin + share, steps)):
        at = ((top + step // across) * (width + 1) + left) * batch + (step % across) * positions
        if turned:
            one = gradient.load([device * outputs + output, at])
            other = signal.load([device * inputs + channel, at + shift]).T
            total = tl.dot(one, other, total, input_precision="tf32")
            if together == 3:
                other = signal.load([device * inputs + channel, at + shift + batch]).T
                middle = tl.dot(one, other, middle, input_precision="tf32")
                other = signal.load([device * inputs + channel, at + shift + 2 * batch]).T
                last = tl.dot(one, other, last, input_precision="tf32")
        else:
            at += device * height * (width + 1) * batch
            one = gradient.load([at, output]).T
            total = tl.dot(one, signal.load([at + shift, channel]), total, input_precision="tf32")
            if together == 3:
                other = signal.load([at + shift + batch, channel])
                middle = tl.dot(one, other, middle, input_precision="tf32")
                other = signal.load([at + shift + 2 * batch, channel])
                last = tl.dot(one, other, last, input_precision="tf32")
    at_output, at_input = output + tl.arange(0, block_outputs), channel + tl.arange(0, block_inputs)
    place = ((part * devices + device).to(tl.int64) * outputs + at_output[:, None]) * (taps * inputs)
    place += tap * inputs + at_input[None, :]
    tl.store(sums + place, total)
    if together == 3:
        tl.store(sums + place + inputs, middle)
        tl.store(sums + place + 2 * inputs, last)
