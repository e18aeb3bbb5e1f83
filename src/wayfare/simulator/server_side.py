"""The server of a run: it applies arrivals through its rule and hands down the model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from wayfare import server as servers
from wayfare.device import Checks
from wayfare.methods import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.guard import Guard
from wayfare.methods.servers import mean_update
from wayfare.methods.states import same_kind
from wayfare.scenario.server import Server
from wayfare.server import ServerState
from wayfare.simulator.ledger import Ledger


class ServerSide:
    """Collects the uploads of a round, applies them together, then hands down the new model."""

    def __init__(
        self,
        initial: Tensor,
        rule: ServerRule,
        terms: ServerTerms,
        settings: Server,
        checks: Checks,
        ledger: Ledger | None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._rule, self._terms, self._settings, self._checks, self._ledger = rule, terms, settings, checks, ledger
        self.state = servers.begin_server(initial, rule, terms, averages=settings.average_rounds > 0, guard=guard)
        self._arrived: list[Arrival] = []
        self._before = initial

    def arrive(self, arrival: Arrival) -> None:
        """Queue an upload; it is applied after the contacts of the round."""
        self._arrived.append(arrival)

    def use_arrivals(self, round_: int, norms_sq: Sequence[float]) -> None:
        arrived, self._arrived = self._arrived, []
        self._before = self.state.model
        self.state = servers.aggregate(self.state, self._rule, arrived, self._terms, self._guard)
        self._checks.aggregated(self.state.model, norms_sq, round_)
        if self._ledger is not None and arrived:
            self._ledger.uploaded(len(arrived))
            if self.taken() is None:
                self._ledger.given(self._terms.devices * mean_update(self.state.model, arrived, self._terms))

    def taken(self) -> Tensor | None:
        """The sum of all updates so far, up to a constant; None if the rule does not report it, or with a guard."""
        if self._guard is not None:
            return None
        return self._rule.taken(self.state.model, self.state.rule_state, self._terms)

    def hand_down(self, device: int, *, cut: bool) -> tuple[Tensor, State]:
        """The model for a device, and what the rule adds to it.

        A device that was still sending when its contact ended gets the model from the start of the round.
        """
        return (self._before if cut else self.state.model), self._rule.handed(self.state.rule_state, device)

    def end_round(self, round_: int) -> None:
        self.state = servers.average(self.state, round_, self._settings.average_rounds)

    def restore(self, state: ServerState) -> None:
        """Resume from a state. The state of another run raises ValueError."""
        if not same_kind(state.rule_state, self.state.rule_state):
            raise ValueError("the state is from another server rule")
        if not same_kind(state.guard_state, self.state.guard_state):
            raise ValueError("the state is from a server with another guard")
        if (state.averaged is None) != (self.state.averaged is None):
            averaging = "without" if state.averaged is None else "with"
            raise ValueError(f"the state is from a server {averaging} model averaging")
        self.state = state
