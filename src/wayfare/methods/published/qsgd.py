"""QSGD: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NIPS 2017.

Each bucket of values has its own norm, as in the paper's experiments, because the variance grows with the root of the
bucket's length. The encoding has a fixed width, so it is longer than the paper's Elias code if most values are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wayfare.codec import bits_per_entry
from wayfare.errors import ScenarioError
from wayfare.methods.parts import Compressor, Draw
from wayfare.radio import Link

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse

NORM_BITS = 32


@dataclass(frozen=True)
class Qsgd(Compressor):
    """x -> |bucket| sign(x) l / levels, where l is levels |x| / |bucket|, rounded at random without bias."""

    levels: int = 7  # and 0, with signs: 4 bits a value
    bucket: int = 512

    def __post_init__(self) -> None:
        for name, value in (("levels", self.levels), ("bucket", self.bucket)):
            if not isinstance(value, int) or value < 1:
                raise ScenarioError(name, value, "must be a whole number of at least 1")

    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        """Quantise all entries, or the largest if not all fit."""
        import torch

        from wayfare.sparsify import Sparse, top_k

        kept = top_k(vector, entries)
        rows = torch.nn.functional.pad(kept.values.double(), (0, -len(kept) % self.bucket)).view(-1, self.bucket)
        norms = rows.norm(dim=1, keepdim=True).float().double()  # as the server gets them
        chance = torch.from_numpy(draw().random(tuple(rows.shape))).to(rows.device)
        level = (rows.abs() / norms.clamp(min=1e-300) * self.levels + chance).floor().clamp(max=self.levels)
        values = (norms * rows.sign() * level / self.levels).flatten()[: len(kept)]
        return Sparse(kept.indices, values.to(vector.dtype))

    def priced(self, link: Link) -> Link:
        """One norm per bucket (the last may be short) and a number of fixed width per value."""
        width, norms = math.ceil(math.log2(2 * self.levels + 1)), math.ceil(link.parameters / self.bucket)
        entry_bits = width + NORM_BITS / self.bucket + bits_per_entry(link.parameters, 0)
        dense_bits = float(width * link.parameters + NORM_BITS * norms) + link.statistics_bits
        statistics_bits = link.statistics_bits + NORM_BITS
        return replace(link, bits_per_entry=entry_bits, dense_bits=dense_bits, statistics_bits=statistics_bits)
