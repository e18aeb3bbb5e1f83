"""The mobile edge server (Algorithm 1, "on the MES"): its model, and what its rule remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wayfare.methods import Arrival, ServerRule, ServerTerms, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The global model, after every upload up to a round. Models are never changed in place: devices may hold them."""

    model: Tensor
    rule_state: State = field(default_factory=dict)
    averaged: Tensor | None = None  # the mean of the model over the last rounds, where one is kept

    @property
    def judged(self) -> Tensor:
        """The model that is evaluated, and what a run ends with."""
        return self.model if self.averaged is None else self.averaged


def begin_server(model: Tensor, rule: ServerRule, terms: ServerTerms, *, averages: bool) -> ServerState:
    """The server before the first round."""
    return ServerState(model=model, rule_state=rule.init(model, terms), averaged=model if averages else None)


def aggregate(state: ServerState, rule: ServerRule, arrivals: Sequence[Arrival], terms: ServerTerms) -> ServerState:
    """What the rule makes of the uploads of a round; a round in which nothing arrives changes nothing."""
    if not arrivals:
        return state
    model, rule_state = rule.apply(state.model, state.rule_state, arrivals, terms)
    return replace(state, model=model, rule_state=rule_state)


def average(state: ServerState, round_: int, rounds: int) -> ServerState:
    """At the end of every round: a <- a + (w - a) / min(round, rounds of the average).

    Which device came last sways the model when each holds few classes; the mean over many is swayed by none.
    """
    if state.averaged is None:
        return state
    return replace(state, averaged=torch.lerp(state.averaged, state.model, 1 / min(round_, rounds)))
