"""The mobile edge server (Algorithm 1, "on the MES"): its model, what its rule remembers, what it knows of senders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wayfare.learning.schedule import Schedule
from wayfare.methods import Arrival, Method, ServerRule, ServerTerms, State
from wayfare.sparsify import Sparse
from wayfare.world import World


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """What a server knows of the devices that send to it, whatever they say."""

    samples: tuple[int, ...]  # that each device holds
    learning_rate: float
    schedule: Schedule = field(default_factory=Schedule)
    trains_between_contacts: bool = True
    steps_per_round: int = 1
    weights: tuple[float, ...] | None = None  # of the devices, 1 on average; None: all alike

    def arrival(self, device: int, sent: Sparse, *, round_: int, staleness_rounds: int) -> Arrival:
        """An upload with all that a server rule may look at, multiplied by the weight of its device."""
        if self.weights is not None:
            sent = Sparse(sent.indices, sent.values * self.weights[device])
        return Arrival(
            device=device,
            sent=sent,
            staleness_rounds=staleness_rounds,
            round=round_,
            samples=self.samples[device],
            reach=self._reach(round_, staleness_rounds),
        )

    def _reach(self, round_: int, rounds: int) -> float:
        """The sum of learning rates over the steps of some rounds, the last of them included."""
        rounds = rounds if self.trains_between_contacts else 1
        # In the field a device may claim any number of rounds; no more count than the schedule has.
        known = min(rounds, self.schedule.rounds)
        shares = rounds if self.schedule.is_constant else self.schedule.shares(round_ - known + 1, known).sum()
        return float(self.learning_rate * self.steps_per_round * shares)


def weights_of(world: World) -> tuple[float, ...] | None:
    """N times each device's share of all samples, so that a rule that divides by N takes the mean over samples."""
    if world.scenario.server.weighting == "equal":
        return None
    samples = [len(held) for held in world.held]
    return tuple(len(samples) * count / sum(samples) for count in samples)


def senders_of(world: World, method: Method) -> Senders:
    learning = world.scenario.learning
    return Senders(
        samples=tuple(len(held) for held in world.held),
        learning_rate=learning.learning_rate,
        schedule=Schedule(learning.schedule, world.scenario.rounds),
        trains_between_contacts=method.local.trains_between_contacts,
        steps_per_round=method.local.steps_per_round,
        weights=weights_of(world),
    )
