"""The largest entries of an update, as Algorithm 1 sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.methods.parts import Compressor, Draw

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse


@dataclass(frozen=True)
class TopK(Compressor):
    """The entries of largest magnitude, with their values as they are."""

    sends_largest = True

    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """The largest, ties to the lower index."""
        from wayfare.sparsify import top_k

        return top_k(vector, entries)
