"""Triton kernel that copies kernels of convolutions between flat vectors and the layout of `convolutions`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import on_device_of

# Channels per program.
_BLOCK = 256


def load_kernels(flat: Tensor, stack: Tensor) -> None:
    """Copy kernels (devices, outputs, inputs, 3, 3), dense for each device, to (devices, outputs, 9, inputs)."""
    _launch(flat, stack, out=False)


def read_kernels(stack: Tensor, flat: Tensor) -> None:
    """The reverse of `load_kernels`."""
    _launch(flat, stack, out=True)


def _launch(flat: Tensor, stack: Tensor, *, out: bool) -> None:
    devices, outputs, _, inputs = stack.shape
    block = min(_BLOCK, inputs & -inputs)
    with on_device_of(stack):
        _copy[(devices * outputs * (inputs // block),)](
            flat, stack, flat.stride(0), outputs, inputs, out=out, block=block
        )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["stride", "outputs", "inputs"], do_not_specialize_on_alignment=["flat"]
)
def _copy(
    flat: tl.tensor,
    stack: tl.tensor,
    stride: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    out: tl.constexpr,
    block: tl.constexpr,
) -> None:
    blocks = inputs // block
    # Tells the compiler that it may read and write several values at a time.
    inputs = blocks * block
    program = tl.program_id(0)
    first = (program % blocks) * block
    output = (program // blocks) % outputs
    device = (program // (blocks * outputs)).to(tl.int64)
    channel, tap = tl.arange(0, block)[:, None], tl.arange(0, 16)[None, :]
    inside = (tap < 9) & (channel >= 0)
    here = flat + device * stride + (output * inputs + first) * 9 + channel * 9 + tap
    there = stack + (device * outputs + output) * 9 * inputs + first + tap * inputs + channel
    if out:
        tl.store(here, tl.load(there, mask=inside), mask=inside)
    else:
        tl.store(there, tl.load(here, mask=inside), mask=inside)
