"""Random-k: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wayfare.codec import bits_per_entry
from wayfare.methods.parts import Compressor, Draw
from wayfare.radio import Link

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse

KEY_BITS = 64
"""Device and round, 32 bits each. With the fleet's seed the server draws the same indices."""


@dataclass(frozen=True)
class RandomK(Compressor):
    """k uniformly random entries with exact values; error feedback keeps the rest."""

    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """Draw the indices with the generator of this device and round."""
        import torch

        from wayfare.sparsify import Sparse

        drawn = draw().choice(len(vector), min(entries, len(vector)), replace=False, shuffle=False)
        indices = torch.from_numpy(np.sort(drawn)).to(vector.device)
        return Sparse(indices, vector.index_select(0, indices))

    def priced(self, link: Link) -> Link:
        """An entry costs its value only. Every upload carries a key instead of indices."""
        return replace(
            link,
            bits_per_entry=link.bits_per_entry - bits_per_entry(link.parameters, 0),
            statistics_bits=link.statistics_bits + KEY_BITS,
        )
