"""Weights (devices, outputs, inputs) times a factor of every output, and the gradients of both."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Outputs of one program, and inputs read at a time.
_OUTPUTS, _INPUTS = 8, 128


def gradients_of_folded(gradient: Tensor, weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the weight and of the factor (devices, outputs), or one row for all, in one pass."""
    devices, outputs, inputs = weight.shape
    of_weight, of_factor = torch.empty_like(weight), weight.new_empty(devices, outputs)
    with on_device_of(weight):
        _unfold[(triton.cdiv(devices * outputs, _OUTPUTS),)](
            gradient,
            weight,
            factor,
            of_weight,
            of_factor,
            devices * outputs,
            inputs,
            factor.numel(),
            outputs_at_once=_OUTPUTS,
            block=_INPUTS,
            **ROUNDING,
        )
    return of_weight, of_factor


@triton.jit(do_not_specialize=["count", "factors"])  # type: ignore[untyped-decorator]
def _unfold(
    gradient: tl.tensor,
    weight: tl.tensor,
    factor: tl.tensor,
    of_weight: tl.tensor,
    of_factor: tl.tensor,
    count: tl.tensor,
    inputs: tl.tensor,
    factors: tl.tensor,
    outputs_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    output = tl.program_id(0) * outputs_at_once + tl.arange(0, outputs_at_once)
    known = output < count
    own = tl.load(factor + output % factors, mask=known, other=0.0)[:, None]
    total = tl.zeros((outputs_at_once, block), dtype=tl.float32)
    for first in range(0, inputs, block):
        number = first + tl.arange(0, block)
        place = output.to(tl.int64)[:, None] * inputs + number[None, :]
        mask = known[:, None] & (number < inputs)[None, :]
        value = tl.load(gradient + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(of_weight + place, value * own, mask=mask)
        total += value * tl.load(weight + place, mask=mask, other=0.0)
    tl.store(of_factor + output, tl.sum(total, axis=1), mask=known)
