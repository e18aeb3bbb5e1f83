"""Reproducible sums along the edges of graphs, without sorting: the orders are precomputed.

Values flow from the rows of one table to the rows of another: every receiving row is the sum of its givers. The
backward pass is the same with givers and receivers exchanged, so a flow is stored with its transpose.

A sum is one `embedding_bag`. On a GPU one thread sums one feature of one receiver in the order of the list, without
atomic additions and without a temporary value per edge. On a CPU it takes a fraction of the time of
`index_add`. On CUDA the deterministic `index_add` and the derivative of `index_select` sort indices in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wayfare.engine.lanegcn.fused import fused_kernels


@dataclass(frozen=True, slots=True)
class Sum:
    """The givers of each row: ``givers`` from its entry in ``first`` to that of the next row.

    Without ``first`` every row receives one. All are int32.
    """

    givers: Tensor
    first: Tensor | None = None

    def of(self, rows: Tensor) -> Tensor:
        """(rows, features) -> (receiving rows, features)."""
        if self.first is None:
            return rows.index_select(0, self.givers)
        return functional.embedding_bag(self.givers, rows, self.first, mode="sum")


@dataclass(frozen=True, slots=True)
class Flow:
    """A sum and its transpose. Padding rows may be missing in either, because they have no derivative."""

    onward: Sum
    back: Sum

    @property
    def reverse(self) -> Flow:
        return Flow(self.back, self.onward)

    def __call__(self, rows: Tensor, groups: int) -> Tensor:
        """(..., features) -> (groups, receiving rows per group, features), differentiable."""
        received: Tensor = _Flowing.apply(rows, self, groups)  # type: ignore[no-untyped-call]
        return received


def met(one: Flow, rows: Tensor, other: Flow, more: Tensor, groups: int) -> Tensor:
    """The sum of rows received from two tables, by flows with one giver each: (..., features) -> (groups, rows,
    features)."""
    received: Tensor = _Meeting.apply(one, rows, other, more, groups)  # type: ignore[no-untyped-call]
    return received


def spread(flow: Flow, stacks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Several tensors (rows, ...) along one flow, in as few calls as one tensor."""
    received: tuple[Tensor, ...] = _Spreading.apply(flow, *stacks)  # type: ignore[no-untyped-call]
    return received


def _grouped(rows: Tensor, groups: int) -> Tensor:
    """(rows, features) -> (groups, rows per group, features). Not a view for autograd, so it may be overwritten."""
    shaped: Tensor = torch.ops.aten._unsafe_view(rows, (groups, -1, rows.shape[1]))
    return shaped


def _rows(rows: Tensor) -> Tensor:
    return rows.reshape(-1, rows.shape[-1])


class _Flowing(torch.autograd.Function):
    """Only the lists are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, flow: Flow, groups: int) -> Tensor:
        ctx.flow, ctx.shape = flow, rows.shape
        return _grouped(flow.onward.of(_rows(rows)), groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.flow.back.of(_rows(gradient)).view(ctx.shape), None, None


class _Meeting(torch.autograd.Function):
    """One pass on a GPU; both inputs have the same gradient."""

    @staticmethod
    def forward(ctx: Any, one: Flow, rows: Tensor, other: Flow, more: Tensor, groups: int) -> Tensor:
        ctx.flows, ctx.shapes = (one, other), (rows.shape, more.shape)
        kernels = fused_kernels(rows.device) if rows.is_cuda else None
        rows, more = _rows(rows), _rows(more)
        if kernels is None or rows.dtype == torch.float64:
            return _grouped(one.onward.of(rows).add_(other.onward.of(more)), groups)
        return _grouped(kernels.sum_of_two(rows, one.onward.givers, more, other.onward.givers), groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, Tensor, None]:
        rows = _rows(gradient)
        one, other = (flow.back.of(rows).view(shape) for flow, shape in zip(ctx.flows, ctx.shapes, strict=True))
        return None, one, None, other, None


class _Spreading(torch.autograd.Function):
    """Concatenated into one table, forward and backward."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, *stacks: Tensor) -> tuple[Tensor, ...]:
        ctx.flow, ctx.shapes = flow, [stack.shape for stack in stacks]
        return _apart(flow.onward.of(_side_by_side(stacks)), ctx.shapes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given = ctx.flow.back.of(_side_by_side(gradients))
        sizes = [shape[1:].numel() for shape in ctx.shapes]
        # Make the gradients dense in one call, as the optimiser expects.
        dense = [given.new_empty(shape) for shape in ctx.shapes]
        torch.split_with_sizes_copy(given, sizes, dim=1, out=[one.view(len(given), -1) for one in dense])
        return None, *dense


def _side_by_side(stacks: Sequence[Tensor]) -> Tensor:
    return torch.cat([stack.flatten(1) for stack in stacks], dim=1)


def _apart(table: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
    pieces = table.split_with_sizes([shape[1:].numel() for shape in shapes], dim=1)
    return tuple(piece.unflatten(1, shape[1:]) for piece, shape in zip(pieces, shapes, strict=True))
