"""DGC: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018.

Momentum correction and momentum factor masking, as in the paper. Gradient clipping and sparsity warm-up are left
out: the contact decides how many entries fit. In the paper g is a gradient and the momentum is 0.9. Here g is the
change of theta local steps. 0.9 per step would be 0.9^theta per contact, so the default is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.errors import ScenarioError
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.parts import State

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse


@dataclass(frozen=True)
class MomentumCorrection(ErrorFeedback):
    """u <- m u + g, v <- v + u. The device sends entries of v and resets u and v to 0 there.

    v is the memory. Without the reset of u, momentum would send the same entries again in an outdated direction.
    """

    momentum: float = 0.5
    conserves = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ScenarioError("momentum", self.momentum, "must be at least 0 and below 1")

    def init(self, like: Tensor) -> State:
        """u = 0, stored as one expanded number."""
        return {"u": like.new_zeros(()).expand(len(like))}

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        u = change.add(state["u"], alpha=self.momentum)
        return memory + u, {"u": u}

    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        """Subtract the sent entries from v and reset them in u."""
        memory, _ = super().keep(update, sent, state)
        return memory, {"u": state["u"].index_fill(0, sent.indices, 0.0)}
