"""Sums along the edges of graphs, which repeat bit by bit and need no sort: their orders are prepared.

Values flow from the rows of one table to the rows of another: every row that receives is the sum of the rows that give
to it. The way back of a flow is the same with givers and receivers exchanged, so a flow is held with its reverse.

A sum is one `embedding_bag`. On a GPU one thread adds up one feature of one receiver in the order of the list, without
atomic additions, and what is given is never written out edge by edge; on a processor it is a fraction of the time of
`index_add`. On CUDA the deterministic `index_add` and the derivative of `index_select` sort indices in every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Sum:
    """Which rows each row receives: those of ``givers`` from its entry in ``first`` to that of the next row.

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
    """A sum and its transpose. Rows that are padding may be left out of either: what they hold has no derivative."""

    onward: Sum
    back: Sum

    @property
    def reverse(self) -> Flow:
        """The flow from those who received to those who gave."""
        return Flow(self.back, self.onward)

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, features) -> (receiving rows, features), to be differentiated."""
        received: Tensor = _Flowing.apply(rows, self)  # type: ignore[no-untyped-call]
        return received


class _Flowing(torch.autograd.Function):
    """Nothing needs to be kept but the lists."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, flow: Flow) -> Tensor:
        ctx.flow = flow
        return flow.onward.of(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.flow.back.of(gradient.contiguous()), None
