"""Hard-threshold sparsification: Sahu, Dutta, Abdelmoniem, Banerjee, Canini, Kalnis, "Rethinking Gradient
Sparsification as Total Error Minimization", NeurIPS 2021.

The paper's threshold is absolute and tuned for each task. Here it is a multiple of the root mean square of the update.
Updates grow with the learning rate, the rounds between contacts and the scale of the model, so no absolute default
fits two tasks. If the learning rate falls, an absolute threshold also sends too little in the end (Lu et al.,
"gamma-FedHT", INFOCOM 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Compressor, Draw

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse


@dataclass(frozen=True)
class Threshold(Compressor):
    """All entries of at least `size` times the root mean square, and always the largest entry.

    A size of 2 sends 5 % of normally distributed entries. If not all of them fit into the contact, the largest go.
    """

    size: float = 2.0
    sends_largest = True

    def __post_init__(self) -> None:
        if not self.size > 0:
            raise ScenarioError("size", self.size, "must be above 0")

    def select(self, vector: Tensor, entries: int, draw: Draw) -> Sparse:
        from wayfare.sparsify import top_k

        reaching = vector.abs() >= self.size * vector.square().mean().sqrt()
        return top_k(vector, min(entries, max(int(reaching.sum()), 1)))
