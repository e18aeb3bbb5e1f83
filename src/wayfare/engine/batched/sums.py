"""Triton kernels for sums whose order depends only on the shape of one device's values.

Sums of PyTorch may take another order for another number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Values per program.
_BLOCK = 1024
# Values per program and step for norms.
_NORM_BLOCK = 4096


def sum_of_parts(parts: Tensor) -> Tensor:
    """The sum over the first axis, in order."""
    out = torch.empty_like(parts[0])
    with on_device_of(parts):
        _sum_of_parts[(triton.cdiv(out.numel(), _BLOCK),)](parts, out, len(parts), out.numel(), block=_BLOCK)
    return out


@triton.jit(do_not_specialize=["count", "size"])  # type: ignore[untyped-decorator]
def _sum_of_parts(parts: tl.tensor, out: tl.tensor, count: tl.tensor, size: tl.tensor, block: tl.constexpr) -> None:
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < size
    total = tl.zeros((block,), dtype=tl.float32)
    source = parts + place
    for _ in range(0, count):
        total += tl.load(source, mask=inside, other=0.0)
        source += size
    tl.store(out + place, total, mask=inside)


def norms(vectors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each device's entries in all of some tensors (devices, ...)."""
    devices, where = len(vectors[0]), vectors[0].device
    sizes = [each[0].numel() for each in vectors]
    programs = [triton.cdiv(size, _NORM_BLOCK) for size in sizes]
    squares = torch.empty(devices, sum(programs), device=where)
    found = torch.empty(devices, device=where)
    with on_device_of(squares):
        first = 0
        for each, size, blocks in zip(vectors, sizes, programs, strict=True):
            _squares[(devices * blocks,)](
                each, squares, size, first, blocks, sum(programs), block=_NORM_BLOCK, **ROUNDING
            )
            first += blocks
        _root[(devices,)](squares, found, sum(programs), block=_BLOCK)
    return found


@triton.jit(do_not_specialize=["size", "first", "blocks", "stride"])  # type: ignore[untyped-decorator]
def _squares(
    values: tl.tensor,
    squares: tl.tensor,
    size: tl.tensor,
    first: tl.tensor,
    blocks: tl.tensor,
    stride: tl.tensor,
    block: tl.constexpr,
) -> None:
    device, number = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    place = number * block + tl.arange(0, block)
    value = tl.load(values + device * size + place, mask=place < size, other=0.0)
    tl.store(squares + device * stride + first + number, tl.sum(value * value, axis=0))


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _root(squares: tl.tensor, found: tl.tensor, count: tl.tensor, block: tl.constexpr) -> None:
    device = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    total = tl.zeros((block,), dtype=tl.float32)
    for first in range(0, count, block):
        total += tl.load(squares + device * count + first + place, mask=first + place < count, other=0.0)
    tl.store(found + device, tl.sqrt_rn(tl.sum(total, axis=0)))
