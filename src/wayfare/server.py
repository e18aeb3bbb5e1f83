"""The mobile edge server (Algorithm 1, "on the MES"): its model, the state of its rule, and facts about senders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wayfare.learning.models.base import Model
from wayfare.learning.schedule import Schedule
from wayfare.learning.sums import SumsModel
from wayfare.methods import NO_STATE, Arrival, Method, ServerRule, ServerTerms, State
from wayfare.methods.guard import Guard
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse
from wayfare.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The global model after all uploads up to a round. Models are never changed in place, since devices share them."""

    model: Tensor
    rule_state: State = field(default_factory=dict)
    averaged: Tensor | None = None  # the mean of the model over the last rounds; None if not averaged
    guard_state: State = field(default_factory=dict)

    @property
    def judged(self) -> Tensor:
        """The model that is evaluated and recorded as the final model."""
        return self.model if self.averaged is None else self.averaged


def begin_server(
    model: Tensor, rule: ServerRule, terms: ServerTerms, *, averages: bool, guard: Guard | None = None
) -> ServerState:
    return ServerState(
        model=model,
        rule_state=rule.init(model, terms),
        # Sums alone have nothing to average.
        averaged=model if averages and terms.sums < len(model) else None,
        guard_state=NO_STATE if guard is None else guard.init(),
    )


def aggregate(
    state: ServerState,
    rule: ServerRule,
    arrivals: Sequence[Arrival],
    terms: ServerTerms,
    guard: Guard | None = None,
) -> ServerState:
    """Apply the server rule to the uploads of a round that pass the guard. Without any, the model stays."""
    if guard is not None and arrivals:
        arrivals, guard_state = guard.screen(state.model, state.guard_state, arrivals, rule)
        state = replace(state, guard_state=guard_state)
    if not arrivals:
        return state
    model, rule_state = rule.apply(state.model, state.rule_state, arrivals, terms)
    return replace(state, model=model, rule_state=rule_state)


def average(state: ServerState, round_: int, rounds: int) -> ServerState:
    """Update the average at the end of a round: a <- a + (w - a) / min(round, rounds).

    If devices hold few classes, the last upload dominates the model. The mean over many rounds removes this effect.
    """
    if state.averaged is None:
        return state
    return replace(state, averaged=torch.lerp(state.averaged, state.model, 1 / min(round_, rounds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """Facts about the devices that the server knows itself and need not trust them for."""

    samples: tuple[int, ...] | None  # number of samples of each device; None: unknown
    learning_rate: float
    schedule: Schedule = field(default_factory=Schedule)
    trains_between_contacts: bool = True
    steps_per_round: int = 1
    weights: tuple[float, ...] | None = None  # one per device, 1 on average; None: all equal

    def arrival(self, device: int, sent: Sparse, *, round_: int, staleness_rounds: int) -> Arrival:
        """An upload, multiplied by the weight of its device, with everything that a server rule may use."""
        if self.weights is not None:
            sent = Sparse(sent.indices, sent.values * self.weights[device])
        return Arrival(
            device=device,
            sent=sent,
            staleness_rounds=staleness_rounds,
            round=round_,
            samples=None if self.samples is None else self.samples[device],
            reach=self._reach(round_, staleness_rounds),
        )

    def _reach(self, round_: int, rounds: int) -> float:
        """The sum of learning rates over all steps of the `rounds` rounds that end with `round_`."""
        rounds = rounds if self.trains_between_contacts else 1
        # A device in the field may claim any number of rounds; limit it to those of the schedule.
        known = min(rounds, self.schedule.rounds)
        shares = rounds if self.schedule.is_constant else self.schedule.shares(round_ - known + 1, known).sum()
        return float(self.learning_rate * self.steps_per_round * shares)


def server_terms_of(world: World) -> ServerTerms:
    return terms_for(world.task.model, world.scenario)


def terms_for(model: Model, scenario: Scenario) -> ServerTerms:
    """What the server rule of a scenario knows about a fleet and the vectors of a model."""
    terms = ServerTerms(devices=scenario.fleet.devices, statistics=model.statistics)
    if not isinstance(model, SumsModel):
        return terms
    classifier = model.classifier if model.trained is not None else None
    return replace(terms, sums=model.layout.entries, classifier=classifier)


def weights_of(world: World) -> tuple[float, ...] | None:
    """N times each device's share of all samples: a rule that divides by N then averages over samples.

    None if all count the same. Sums count every sample once as they are.
    """
    if world.scenario.server.weighting == "equal" or world.link.sums:
        return None
    samples = [len(held) for held in world.held]
    return tuple(len(samples) * count / sum(samples) for count in samples)


def senders_of(world: World, method: Method) -> Senders:
    samples = tuple(len(held) for held in world.held)
    return replace(unknown_senders(world.scenario, method), samples=samples, weights=weights_of(world))


def unknown_senders(scenario: Scenario, method: Method) -> Senders:
    """The senders of a fleet whose data the server does not know."""
    return Senders(
        samples=None,
        learning_rate=scenario.learning.learning_rate,
        schedule=Schedule(scenario.learning.schedule, scenario.rounds),
        trains_between_contacts=method.local.trains_between_contacts,
        steps_per_round=method.local.steps_per_round,
    )
