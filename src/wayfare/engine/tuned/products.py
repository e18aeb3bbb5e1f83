"""Products of all devices in Triton, with what follows them: biases and ReLU, or gradients through the ReLU before.

Rows are (devices, rows, channels). Weights are (devices, outputs, inputs), or one row for all. A product whose result
is larger than its operand takes most of its time to write it; this saves the passes over the result after it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.activation_kernels import nearest
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of
from wayfare.engine.tuned.depthwise import Gate
from wayfare.engine.tuned.relu import activated

# Outputs and warps of one program, and steps of the sum in flight.
_OUTPUTS, _WARPS, _STAGES = 64, 4, 3
# TF32: the widest operand of an expansion, and of other layers, whose product is faster here (benchmarks/NOTES.md).
_WIDEST_EXPANDED, _WIDEST_NARROW = 112, 40


def pays(rows: Tensor, outputs: int, *, gated: bool = False) -> bool:
    """Whether a product here is faster than one of cuBLAS and a pass over its result."""
    if rows.dtype == torch.bfloat16:
        return True
    if torch.get_float32_matmul_precision() == "highest":
        return False
    inputs = rows.shape[2]
    narrow = min(inputs, outputs)
    return narrow <= _WIDEST_NARROW or (narrow <= _WIDEST_EXPANDED and (gated or outputs > inputs))


def _rows_at_once(dtype: torch.dtype, *, gated: bool) -> int:
    return 64 if gated or dtype == torch.float32 else 128


def activated_product(rows: Tensor, weights: Tensor, bias: Tensor | None, limit: float) -> Tensor:
    """min(max(x W' + b, 0), limit); without ReLU if the limit is negative."""
    return _product(rows, weights, bias, limit, None)


def product_inputs(error: Tensor, weights: Tensor, gate: Gate) -> Tensor:
    """The gradient e W of rows, before the ReLU that made them."""
    return _product(error, weights.transpose(1, 2), None, -1.0, gate)


def _product(rows: Tensor, weights: Tensor, bias: Tensor | None, limit: float, gate: Gate | None) -> Tensor:
    single = rows.dtype == torch.float32
    # In single precision, matrix units only read operands whose summed axis is adjacent in memory.
    weights = weights.contiguous() if single or weights.stride(2) == 1 else weights
    (devices, count, inputs), outputs = rows.shape, weights.shape[1]
    unit = 8 if inputs % 8 == outputs % 8 == 0 else 1
    # A step reads full lines of memory.
    step = max(16, min(128 // rows.element_size(), triton.next_power_of_2(inputs)))
    at_once = _rows_at_once(rows.dtype, gated=gate is not None)
    blocks = triton.cdiv(count, at_once), triton.cdiv(outputs, _OUTPUTS)
    out = rows.new_empty(devices, count, outputs)
    with on_device_of(rows):
        _multiply[(devices * blocks[0] * blocks[1],)](
            rows,
            weights,
            out if bias is None else bias,
            out if gate is None else gate.signal,
            out,
            count,
            inputs // unit,
            outputs // unit,
            0 if len(weights) == 1 else 1,
            0 if bias is None or len(bias) == 1 else 1,
            limit if gate is None else gate.limit,
            has_bias=bias is not None,
            has_limit=limit >= 0,
            has_gate=gate is not None,
            turned=weights.stride(2) != 1,
            rounded=single,
            unit=unit,
            tile_rows=at_once,
            tile_outputs=_OUTPUTS,
            step=step,
            num_warps=_WARPS,
            num_stages=min(_STAGES, triton.cdiv(inputs, step)),
            **ROUNDING,
        )
    return out


_SIZES = ["count", "inputs", "outputs", "by_device", "bias_by_device"]


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _multiply(
    rows: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    by_device: tl.tensor,
    bias_by_device: tl.tensor,
    limit: tl.tensor,
    has_bias: tl.constexpr,
    has_limit: tl.constexpr,
    has_gate: tl.constexpr,
    turned: tl.constexpr,
    rounded: tl.constexpr,
    unit: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
    step: tl.constexpr,
) -> None:
    """One tile of results. Channels are counted in units, so that the compiler knows how wide it may read.

    Programs next to each other read the same rows. Turned weights have their outputs adjacent in memory.
    """
    # A product with a constant, of which the compiler knows the divisor.
    inputs, outputs = inputs * unit, outputs * unit
    across, down = tl.cdiv(outputs, tile_outputs), tl.cdiv(count, tile_rows)
    device = (tl.program_id(0) // (across * down)).to(tl.int64)
    row = (tl.program_id(0) // across) % down * tile_rows + tl.arange(0, tile_rows)
    output = tl.program_id(0) % across * tile_outputs + tl.arange(0, tile_outputs)
    number = tl.arange(0, step)
    known, inside = (row < count)[:, None], (output < outputs)[None, :]
    here = rows + (device * count + row)[:, None] * inputs + number[None, :]
    weights += device * by_device * inputs * outputs
    total = tl.zeros((tile_rows, tile_outputs), dtype=tl.float32)
    for first in range(0, inputs, step):
        left = inputs - first
        one = tl.load(here + first, mask=known & (number < left)[None, :], other=0.0)
        if turned:
            there = weights + (first + number)[:, None] * outputs + output[None, :]
            other = tl.load(there, mask=(number < left)[:, None] & inside, other=0.0)
        else:
            place = weights + output[:, None] * inputs + first + number[None, :]
            other = tl.load(place, mask=(output < outputs)[:, None] & (number < left)[None, :], other=0.0).T
        if rounded:
            # To TF32; matrix units would cut bits off, which has 2.6 times the error.
            one, other = nearest(one), nearest(other)
        total = tl.dot(one, other, total, input_precision="tf32")
    if has_bias:
        total += tl.load(bias + device * bias_by_device * outputs + output, mask=output < outputs, other=0.0)[None, :]
    if has_limit:
        total = activated(total, limit)
    at = (device * count + row)[:, None] * outputs + output[None, :]
    if has_gate:
        signal = tl.load(gate + at, mask=known & inside, other=0.0).to(tl.float32)
        total = tl.where((signal <= 0) | (signal >= limit), 0.0, total)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=known & inside)
