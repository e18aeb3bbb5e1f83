"""Memory rules: error feedback (Algorithm 1), none, and decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.errors import ScenarioError
from wayfare.methods.parts import MemoryRule, State

if TYPE_CHECKING:
    from torch import Tensor

    from wayfare.sparsify import Sparse


@dataclass(frozen=True)
class ErrorFeedback(MemoryRule):
    """Error feedback: the update is x = e + g, and e <- x - S(x) after the upload."""

    conserves = True

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return memory + change, state

    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        from wayfare.sparsify import remainder

        return remainder(update, sent), state


@dataclass(frozen=True)
class Forgetting(MemoryRule):
    """No memory: entries that were not sent are lost at the next download."""

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return change, state

    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        """Zeros, stored as one expanded number."""
        return update.new_zeros(()).expand(len(update)), state

    def take_back(self, memory: Tensor, returned: Sparse, state: State) -> tuple[Tensor, State]:
        return memory, state


@dataclass(frozen=True)
class Decay(ErrorFeedback):
    """Error feedback that fades with every contact: x = share e + g."""

    share: float = 0.9
    conserves = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ScenarioError("share", self.share, "must be 0 to 1")

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return self.share * memory + change, state
