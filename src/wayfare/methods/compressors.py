"""Top-k, the compressor of Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.methods.parts import Compressor, Draw

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse


@dataclass(frozen=True)
class TopK(Compressor):
    """The entries of largest magnitude, with exact values."""

    sends_largest = True

    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """The k largest entries; ties go to the lower index."""
        from wayfare.sparsify import top_k

        return top_k(vector, entries)
