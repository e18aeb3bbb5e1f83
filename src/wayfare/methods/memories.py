"""What is remembered of what was not sent: all of it, as Algorithm 1 has it, nothing, or less and less."""

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
    """x = e + g is there to be sent, and e = x - S(x) is remembered."""

    conserves = True

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return memory + change, state

    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        from wayfare.sparsify import remainder

        return remainder(update, sent), state


@dataclass(frozen=True)
class Forgetting(MemoryRule):
    """What was not sent is lost when the next model comes."""

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return change, state

    def keep(self, update: Tensor, sent: Sparse, state: State) -> tuple[Tensor, State]:
        """Zero, in one number for all entries."""
        return update.new_zeros(()).expand(len(update)), state

    def take_back(self, memory: Tensor, returned: Sparse, state: State) -> tuple[Tensor, State]:
        return memory, state


@dataclass(frozen=True)
class Decay(ErrorFeedback):
    """Error feedback that counts for less with every contact: x = share e + g."""

    share: float = 0.9
    conserves = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ScenarioError("share", self.share, "must be 0 to 1")

    def offer(self, memory: Tensor, change: Tensor, state: State) -> tuple[Tensor, State]:
        return self.share * memory + change, state
