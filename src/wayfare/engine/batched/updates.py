"""Triton kernel for the update of all devices' weights, with the copies that the next convolutions read."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.activation_kernels import nearest
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

_BLOCK = 64


def update(
    weights: Tensor,
    directions: Tensor | None,
    rates: Tensor,
    *,
    rows: Tensor | None = None,
    copy: Tensor | None = None,
    turned: Tensor | None = None,
    rounded: bool = False,
) -> None:
    """w <- w - rate v, for weights (rows, outputs, taps, inputs) and one rate per device; None leaves w unchanged.

    ``rows`` are those of the devices; without them, devices have the first rows in order.
    Then writes w to ``copy``, in its type, and `turned_weights` of w to ``turned``.
    """
    _, outputs, taps, inputs = weights.shape
    block_outputs, block_inputs = (min(_BLOCK, size & -size) for size in (outputs, inputs))
    with on_device_of(weights):
        _update[(len(rates) * taps * (outputs // block_outputs) * (inputs // block_inputs),)](
            weights,
            weights if directions is None else directions,
            rates,
            rates if rows is None else rows,
            weights if copy is None else copy,
            weights if turned is None else turned,
            outputs,
            inputs,
            taps=taps,
            has_directions=directions is not None,
            has_rows=rows is not None,
            has_copy=copy is not None,
            has_turned=turned is not None,
            rounded=rounded,
            block_outputs=block_outputs,
            block_inputs=block_inputs,
            **ROUNDING,
        )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["outputs", "inputs"], do_not_specialize_on_alignment=["rates", "rows"]
)
def _update(
    weights: tl.tensor,
    directions: tl.tensor,
    rates: tl.tensor,
    rows: tl.tensor,
    copy: tl.tensor,
    turned: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    taps: tl.constexpr,
    has_directions: tl.constexpr,
    has_rows: tl.constexpr,
    has_copy: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
) -> None:
    across, down = inputs // block_inputs, outputs // block_outputs
    # Tells the compiler that it may read and write several values at a time.
    inputs, outputs = across * block_inputs, down * block_outputs
    program = tl.program_id(0)
    first_input = (program % across) * block_inputs
    first_output = ((program // across) % down) * block_outputs
    tap = (program // (across * down)) % taps
    device = program // (across * down * taps)
    mine = device
    if has_rows:
        mine = tl.load(rows + device)
    output, input_ = tl.arange(0, block_outputs)[:, None], tl.arange(0, block_inputs)[None, :]
    here = tap * inputs + first_input
    place = (mine * outputs + first_output).to(tl.int64) * (taps * inputs) + here
    offsets = output * (taps * inputs) + input_
    value = tl.load(weights + place + offsets)
    if has_directions:
        direction = (device * outputs + first_output).to(tl.int64) * (taps * inputs) + here
        value -= tl.load(rates + device) * tl.load(directions + direction + offsets)
        tl.store(weights + place + offsets, value)
    if has_copy:
        tl.store(copy + place + offsets, value.to(copy.dtype.element_ty))
    if has_turned:
        if rounded:
            value = nearest(value)
        place = (mine * inputs + first_input).to(tl.int64) * (taps * outputs)
        place += (taps - 1 - tap) * outputs + first_output
        tl.store(turned + place + input_ * (taps * outputs) + output, value.to(turned.dtype.element_ty))
