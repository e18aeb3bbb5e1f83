"""GPU kernels in Triton: norms within rows, and sums of rows from two tables.

`fused` imports them if they can be used. A norm is one kernel forward, and one kernel and a short sum backward. Rows
are read and written once each way, and only their means and deviations are saved for the backward pass. Gradients of
weights are sums over rows: every program writes the sum over its own rows, and these are added in a fixed order, so
results are reproducible.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# A program processes several short rows at a time, or one long one.
_TILE_ENTRIES = 2048
# In the backward pass a program sums over some tiles: few enough sums to add up, enough programs to keep a GPU busy.
_TILES_SUMMED, _ROWS_SUMMED = 2, 16
# Fused multiply-add rounds once. Versions of Triton have different defaults.
_ROUNDING = {"enable_fp_fusion": True}
# How the backward pass knows where ReLU was active.
_NOTHING_CUT, _CUT_AGAIN, _CUT_AS_KEPT = 0, 1, 2


class FusedNorm(torch.autograd.Function):
    """As `row_norm.normalised`, for rows in float32 or bfloat16 with sums in float32."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, rectified: bool, eps: float
    ) -> Tensor:
        rows, weight, bias = rows.contiguous(), _with_dense_rows(weight), _with_dense_rows(bias)
        added = None if added is None else added.contiguous()
        deal = _Deal(rows)
        out = torch.empty_like(rows)
        mean, inverse = torch.empty(2, *rows.shape[:2], dtype=torch.float32, device=rows.device).unbind()
        with _on_device_of(rows):
            _forward[(deal.programs(1),)](
                rows,
                out if added is None else added,
                weight,
                bias,
                out,
                mean,
                inverse,
                deal.rows,
                weight.stride(0),
                bias.stride(0),
                eps=eps,
                has_added=added is not None,
                rectified=rectified,
                **deal.constants,
            )
        ctx.deal, ctx.rectified, ctx.added_type = deal, rectified, None if added is None else added.dtype
        # Without `added`, recomputing the mask is faster than reading it.
        ctx.save_for_backward(rows, mean, inverse, weight, bias, None if added is None or not rectified else out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        rows, mean, inverse, weight, bias, out = ctx.saved_tensors
        deal, gradient = ctx.deal, gradient.contiguous()
        of_rows, of_added = torch.empty_like(rows), None if ctx.added_type is None else gradient
        if out is not None:
            of_added = torch.empty_like(out, dtype=ctx.added_type)
        programs = deal.programs(deal.tiles_summed)
        sums = torch.empty(2, programs, deal.entries, dtype=torch.float32, device=rows.device)
        with _on_device_of(rows):
            _backward[(programs,)](
                gradient,
                rows,
                rows if out is None else out,
                mean,
                inverse,
                weight,
                bias,
                of_rows,
                of_rows if out is None else of_added,
                sums,
                deal.rows,
                weight.stride(0),
                bias.stride(0),
                programs,
                cut=_CUT_AS_KEPT if out is not None else _CUT_AGAIN if ctx.rectified else _NOTHING_CUT,
                tiles_summed=deal.tiles_summed,
                **deal.constants,
            )
        of_weight, of_bias = sums.view(2, len(rows), -1, deal.features).sum(dim=2).unbind()
        return of_rows, of_weight, of_bias, of_added, None, None


def _with_dense_rows(weight: Tensor) -> Tensor:
    return weight if weight.stride(-1) == 1 else weight.contiguous()


def sum_of_two(first: Tensor, of_first: Tensor, second: Tensor, of_second: Tensor) -> Tensor:
    """(rows, features): the sum of row ``of_first[i]`` of one table and ``of_second[i]`` of another."""
    first, second = first.contiguous(), second.contiguous()
    out = first.new_empty(len(of_first), first.shape[1])
    columns = 1 << (first.shape[1] - 1).bit_length()
    tile = max(1, _TILE_ENTRIES // columns)
    with _on_device_of(first):
        _sum_of_two[(-(-len(out) // tile),)](
            first,
            of_first,
            second,
            of_second,
            out,
            len(out),
            features=first.shape[1],
            columns=columns,
            tile=tile,
            **_ROUNDING,
        )
    return out


def _on_device_of(rows: Tensor) -> AbstractContextManager[None]:
    """Make the GPU of the rows the current one, on which Triton launches."""
    return torch.cuda.device(rows.device) if rows.is_cuda else nullcontext()


class _Deal:
    """How rows (devices, rows, ..., features) are distributed over programs. Only `constants` are compiled in."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.features = rows.shape[1], rows.shape[-1]
        self.entries = rows.shape[2:].numel()
        columns = 1 << (self.entries - 1).bit_length()
        tile = max(1, _TILE_ENTRIES // columns)
        self.tiles_summed = max(_TILES_SUMMED, _ROWS_SUMMED // tile)
        self.constants: dict[str, int] = {
            "features": self.features,
            "entries": self.entries,
            "columns": columns,
            "tile": tile,
            "num_warps": 8 if columns > _TILE_ENTRIES else 4,
            **_ROUNDING,
        }
        self._devices, self._tile = rows.shape[0], tile

    def programs(self, tiles: int) -> int:
        """The number of programs with ``tiles`` tiles each; none has rows of two devices."""
        return self._devices * -(-self.rows // (self._tile * tiles))


# The number of rows changes from step to step, so it must not trigger a new compilation.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"], do_not_specialize_on_alignment=["mean", "inverse"]
)
def _forward(
    source: tl.tensor,
    added: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    rows: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    features: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    tile: tl.constexpr,
    eps: tl.constexpr,
    has_added: tl.constexpr,
    rectified: tl.constexpr,
) -> None:
    tiles = tl.cdiv(rows, tile)
    device = (tl.program_id(0) // tiles).to(tl.int64)
    row = (tl.program_id(0) % tiles) * tile + tl.arange(0, tile)
    column = tl.arange(0, columns)
    inside = (row < rows)[:, None] & (column < entries)[None, :]
    at_row = device * rows + row
    at = at_row[:, None] * entries + column[None, :]
    values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.sum(values, axis=1) / entries
    values = tl.where((column < entries)[None, :], values - centre[:, None], 0.0)
    narrow = tl.rsqrt(tl.sum(values * values, axis=1) / entries + eps)
    tl.store(mean + at_row, centre, mask=row < rows)
    tl.store(inverse + at_row, narrow, mask=row < rows)
    feature = column % features
    times = tl.load(weight + device * weight_stride + feature, mask=column < entries, other=0.0)
    plus = tl.load(bias + device * bias_stride + feature, mask=column < entries, other=0.0)
    values = values * narrow[:, None] * times[None, :] + plus[None, :]
    if has_added:
        values += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
    if rectified:
        values = tl.maximum(values, 0.0)
    tl.store(out + at, values, mask=inside)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows", "programs"], do_not_specialize_on_alignment=["mean", "inverse"]
)
def _backward(
    gradient: tl.tensor,
    source: tl.tensor,
    out: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    of_source: tl.tensor,
    of_added: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    programs: tl.tensor,
    features: tl.constexpr,
    entries: tl.constexpr,
    columns: tl.constexpr,
    tile: tl.constexpr,
    cut: tl.constexpr,
    tiles_summed: tl.constexpr,
) -> None:
    """With x^ the normalised row and g the gradient after ReLU: dx = (g w - mean(g w) - x^ mean(g w x^)) / deviation,
    dw = sum of g x^ and db = sum of g over rows."""
    program = tl.program_id(0).to(tl.int64)
    shares = tl.cdiv(rows, tile * tiles_summed)
    device = program // shares
    first = (tl.program_id(0) % shares) * (tile * tiles_summed)
    column = tl.arange(0, columns)
    feature = column % features
    times = tl.load(weight + device * weight_stride + feature, mask=column < entries, other=0.0)
    plus = tl.load(bias + device * bias_stride + feature, mask=column < entries, other=0.0)
    of_weight = tl.zeros((columns,), dtype=tl.float32)
    of_bias = tl.zeros((columns,), dtype=tl.float32)
    for step in range(tiles_summed):
        row = first + step * tile + tl.arange(0, tile)
        inside = (row < rows)[:, None] & (column < entries)[None, :]
        at_row = device * rows + row
        at = at_row[:, None] * entries + column[None, :]
        centre = tl.load(mean + at_row, mask=row < rows, other=0.0)
        narrow = tl.load(inverse + at_row, mask=row < rows, other=0.0)
        values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.where((column < entries)[None, :], values - centre[:, None], 0.0) * narrow[:, None]
        slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
        if cut == 1:
            slope = tl.where(values * times[None, :] + plus[None, :] > 0.0, slope, 0.0)
        if cut == 2:
            slope = tl.where(tl.load(out + at, mask=inside, other=0.0).to(tl.float32) > 0.0, slope, 0.0)
            tl.store(of_added + at, slope, mask=inside)
        of_weight += tl.sum(slope * values, axis=0)
        of_bias += tl.sum(slope, axis=0)
        slope *= times[None, :]
        level = tl.sum(slope, axis=1) / entries
        along = tl.sum(slope * values, axis=1) / entries
        slope = (slope - level[:, None] - values * along[:, None]) * narrow[:, None]
        tl.store(of_source + at, slope, mask=inside)
    at_sum = program * entries + column
    tl.store(sums + at_sum, of_weight, mask=column < entries)
    tl.store(sums + programs.to(tl.int64) * entries + at_sum, of_bias, mask=column < entries)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"], do_not_specialize_on_alignment=["of_first", "of_second"]
)
def _sum_of_two(
    first: tl.tensor,
    of_first: tl.tensor,
    second: tl.tensor,
    of_second: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    features: tl.constexpr,
    columns: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.arange(0, columns)
    inside = (row < rows)[:, None] & (column < features)[None, :]
    one = tl.load(of_first + row, mask=row < rows, other=0).to(tl.int64)
    other = tl.load(of_second + row, mask=row < rows, other=0).to(tl.int64)
    values = tl.load(first + one[:, None] * features + column[None, :], mask=inside, other=0.0).to(tl.float32)
    values += tl.load(second + other[:, None] * features + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64)[:, None] * features + column[None, :], values, mask=inside)
