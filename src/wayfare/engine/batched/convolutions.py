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
ROUNDING = {"enable_fp_fusion": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The block of results of one program, and how it is computed. It affects speed and rounding."""

    positions: int  # adjacent (column, image) pairs of a row
    outputs: int  # channels of the result
    inputs: int  # channels per step of the sum
    warps: int
    stages: int  # steps of the sum in flight


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
    rows: Tensor | None = None,
    backward: bool = False,
    added: bool = False,
) -> None:
    """Convolve padded signals with weights (rows, outputs, taps, inputs), as `conv2d(padding=1)` with nine taps.

    ``rows`` are those of the devices; without them, devices have the first rows in order.

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
            rectangles(signal.view(-1, inputs), tile.positions, tile.inputs),
            rectangles(weights.view(len(weights) * inputs, -1), tile.inputs, tile.outputs)
            if backward
            else rectangles(weights.view(len(weights) * outputs, -1), tile.outputs, tile.inputs),
            out,
            out if moments is None else moments,
            out if rows is None else rows,
            height,
            columns - 1,
            batch,
            inputs,
            outputs,
            nine=taps == 9,
            has_moments=moments is not None,
            has_rows=rows is not None,
            backward=backward,
            added=added,
            positions=tile.positions,
            block_outputs=tile.outputs,
            block_inputs=tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **ROUNDING,
        )


def rectangles(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def on_device_of(signal: Tensor) -> AbstractContextManager[None]:
    """Make the GPU of a signal the current one, on which Triton launches."""
    return torch.cuda.device(signal.device) if signal.is_cuda else nullcontext()


# One compilation serves all sizes.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "batch", "inputs", "outputs"],
    do_not_specialize_on_alignment=["moments", "rows"],
)
def _convolve(
    signal: tl.tensor_descriptor,
    weights: tl.tensor_descriptor,
    out: tl.tensor,
    moments: tl.tensor,
    rows: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    nine: tl.constexpr,
    has_moments: tl.constexpr,
    has_rows: tl.constexpr,
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
    mine = device
    if has_rows:
        mine = tl.load(rows + device)
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
            other = weights.load([mine * inputs + at_input, opposite * outputs + channel])
            total = tl.dot(one, other, total, input_precision="tf32")
        else:
            other = weights.load([mine * outputs + channel, tap * inputs + at_input])
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
