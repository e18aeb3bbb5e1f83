"""Triton kernels for biases and ReLU of signals (devices, rows, channels).

A sum has a fixed order, which does not depend on the number of devices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# A full line of memory in single precision, rows read at a time, and rows that one program adds up.
_CHANNELS, _ROWS, _SUMMED_ROWS = 32, 64, 1024


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
def activated(value: tl.tensor, limit: tl.tensor) -> tl.tensor:
    # Written so that NaN stays NaN.
    return tl.where(value <= 0, 0.0, tl.where(value >= limit, limit, value))


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
    here = signal + (device.to(tl.int64) * count + row)[:, None] * channels + channel[None, :]
    known = (row < count)[:, None] & inside[None, :]
    value = tl.load(here, mask=known, other=0.0).to(tl.float32)
    if has_bias:
        value += tl.load(bias + device * by_device * channels + channel, mask=inside, other=0.0)[None, :]
    if has_limit:
        value = activated(value, limit)
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
    total = tl.zeros((rows, block), dtype=tl.float32)
    for start in range(first, tl.minimum(first + part, count), rows):
        row = start + tl.arange(0, rows)
        place = (device.to(tl.int64) * count + row)[:, None] * channels + channel[None, :]
        known = (row < count)[:, None] & inside[None, :]
        value = tl.load(error + place, mask=known, other=0.0).to(tl.float32)
        if has_limit:
            result = tl.load(out + place, mask=known, other=0.0).to(tl.float32)
            value = tl.where((result <= 0) | (result >= limit), 0.0, value)
            tl.store(passed + place, value.to(passed.dtype.element_ty), mask=known)
        total += value
    if summed:
        tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, axis=0), mask=inside)
