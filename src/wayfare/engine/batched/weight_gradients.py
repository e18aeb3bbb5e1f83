"""Triton kernel for the gradients of the weights of `convolutions`, which can also take the gradient step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.activation_kernels import nearest
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of, rectangles
from wayfare.engine.batched.sums import sum_of_parts


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """w <- w - rate gradient, and what the next step reads, as in `updates.update`."""

    weights: Tensor
    rates: Tensor
    rows: Tensor | None  # of the devices in the weights
    copy: Tensor | None
    turned: Tensor | None
    rounded: bool


def weight_gradient(
    gradient: Tensor,
    signal: Tensor,
    taps: int,
    tile: WeightTile,
    *,
    turned: bool = False,
    update: Update | None = None,
) -> Tensor:
    """The gradient (devices, outputs, taps, inputs) of weights in float32, from padded or turned signals.

    With an ``update``, which needs a tile of one part, it is not stored; returns the updated weights.
    """
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
    if update is not None and tile.parts > 1:
        raise ValueError(f"{tile} has sums of parts, which an update cannot use")
    if update is None:
        sums = gradient.new_empty(tile.parts, devices, outputs, taps, inputs, dtype=torch.float32)
    else:
        sums = update.weights.unsqueeze(0)
    copy = None if update is None else update.copy
    turned_weights = None if update is None else update.turned
    if turned:
        one = rectangles(gradient.view(devices * outputs, -1), tile.outputs, tile.positions)
        other = rectangles(signal.view(devices * inputs, -1), tile.inputs, tile.positions)
    else:
        one = rectangles(gradient.view(-1, outputs), tile.positions, tile.outputs)
        other = rectangles(signal.view(-1, inputs), tile.positions, tile.inputs)
    with on_device_of(signal):
        blocks = (outputs // tile.outputs) * (inputs // tile.inputs)
        _weight_gradient[(tile.parts * devices * (taps // together) * blocks,)](
            one,
            other,
            sums,
            sums if update is None else update.rates,
            sums if update is None or update.rows is None else update.rows,
            sums if copy is None else copy,
            sums if turned_weights is None else turned_weights,
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
            updates=update is not None,
            has_rows=update is not None and update.rows is not None,
            has_copy=copy is not None,
            has_turned=turned_weights is not None,
            rounded=update is not None and update.rounded,
            positions=tile.positions,
            block_outputs=tile.outputs,
            block_inputs=tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **ROUNDING,
        )
    return sums[0] if tile.parts == 1 else sum_of_parts(sums)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "batch", "outputs", "inputs", "devices", "parts"],
    do_not_specialize_on_alignment=["rows"],
)
def _weight_gradient(
    gradient: tl.tensor_descriptor,
    signal: tl.tensor_descriptor,
    sums: tl.tensor,
    rates: tl.tensor,
    rows: tl.tensor,
    copy: tl.tensor,
    turned_weights: tl.tensor,
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
    updates: tl.constexpr,
    has_rows: tl.constexpr,
    has_copy: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
    positions: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
) -> None:
    """dW[o, tap, i] = sum over positions p of dy[p, o] x[p + tap, i]."""
    taps: tl.constexpr = 9 if nine else 1
    groups: tl.constexpr = taps // together
    # Tells the compiler that it may write several values at a time.
    inputs, outputs = (inputs // block_inputs) * block_inputs, (outputs // block_outputs) * block_outputs
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
    at_output, at_input = tl.arange(0, block_outputs)[:, None], tl.arange(0, block_inputs)[None, :]
    mine = device
    if has_rows:
        mine = tl.load(rows + device)
    place = ((part * devices + mine).to(tl.int64) * outputs + output) * (taps * inputs) + tap * inputs + channel
    opposite = (mine.to(tl.int64) * inputs + channel) * (taps * outputs) + (taps - 1 - tap) * outputs + output
    offsets, turned_offsets = at_output * (taps * inputs) + at_input, at_input * (taps * outputs) + at_output
    rate = 0.0
    if updates:
        rate = tl.load(rates + device)
    _finish(
        total,
        sums,
        copy,
        turned_weights,
        place,
        opposite,
        offsets,
        turned_offsets,
        rate,
        updates,
        has_copy,
        has_turned,
        rounded,
    )
    if together == 3:
        _finish(
            middle,
            sums,
            copy,
            turned_weights,
            place + inputs,
            opposite - outputs,
            offsets,
            turned_offsets,
            rate,
            updates,
            has_copy,
            has_turned,
            rounded,
        )
        _finish(
            last,
            sums,
            copy,
            turned_weights,
            place + 2 * inputs,
            opposite - 2 * outputs,
            offsets,
            turned_offsets,
            rate,
            updates,
            has_copy,
            has_turned,
            rounded,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _finish(
    total: tl.tensor,
    sums: tl.tensor,
    copy: tl.tensor,
    turned_weights: tl.tensor,
    place: tl.tensor,
    opposite: tl.tensor,
    offsets: tl.tensor,
    turned_offsets: tl.tensor,
    rate: tl.tensor,
    updates: tl.constexpr,
    has_copy: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
) -> None:
    """Store a gradient, or the weights after a step along it."""
    if updates:
        total = tl.load(sums + place + offsets) - rate * total
    tl.store(sums + place + offsets, total)
    if has_copy:
        tl.store(copy + place + offsets, total.to(copy.dtype.element_ty))
    if has_turned:
        if rounded:
            total = nearest(total)
        tl.store(turned_weights + opposite + turned_offsets, total.to(turned_weights.dtype.element_ty))
