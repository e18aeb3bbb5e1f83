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

# Uploads that wait for the end of a round take 12 bytes per entry. In a large fleet thousands arrive in one round.
_MOST_WAITING_ENTRIES = 2**24


class ServerSide:
    """Collects the uploads of a round, applies them, then hands down the new model.

    A rule that takes arrivals one by one may take the first ones before the last have arrived. The result is the same,
    because no device receives a model before the end of the round.
    """

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
        self._waiting_entries = 0
        # The model before the contacts of this round, and of the last round with contacts.
        self._begin, self._before = initial, initial
        # A guard compares the arrivals of a round, and a ledger sums them up.
        self._may_apply_early = rule.one_by_one and guard is None and ledger is None

    def arrive(self, arrival: Arrival) -> None:
        """Queue an upload; no device sees its effect before `use_arrivals`."""
        self._arrived.append(arrival)
        self._waiting_entries += len(arrival.sent)
        if self._may_apply_early and self._waiting_entries > _MOST_WAITING_ENTRIES:
            self._apply()

    def use_arrivals(self, round_: int, norms_sq: Sequence[float]) -> None:
        arrived = self._apply()
        self._before, self._begin = self._begin, self.state.model
        self._checks.aggregated(self.state.model, norms_sq, round_)
        if self._ledger is not None and arrived:
            self._ledger.uploaded(len(arrived))
            if self.taken() is None:
                self._ledger.given(self._terms.devices * mean_update(self.state.model, arrived, self._terms))

    def _apply(self) -> list[Arrival]:
        arrived, self._arrived, self._waiting_entries = self._arrived, [], 0
        self.state = servers.aggregate(self.state, self._rule, arrived, self._terms, self._guard)
        return arrived

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
        self.state, self._begin = state, state.model
