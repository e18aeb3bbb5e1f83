"""Server rules: add updates, step with an optimiser, or mix models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from wayfare.errors import InvariantError
from wayfare.methods.parts import NO_STATE, Arrival, ServerRule, ServerTerms, State
from wayfare.scenario.exchange import Mixing
from wayfare.scenario.server import Server

if TYPE_CHECKING:
    from torch import Tensor

StalenessFunction: TypeAlias = Literal["polynomial", "constant", "hinge"]
"""How the weight of a model falls with staleness; the first is the default."""


def subtract_from(model: Tensor, arrival: Arrival, share: float) -> None:
    """model <- model - share S(x), in place."""
    from wayfare.sparsify import subtract

    subtract(model, arrival.sent, share)


def mean_update(model: Tensor, arrivals: Sequence[Arrival], terms: ServerTerms) -> Tensor:
    """d = (1/N) sum of S(x) over the arrivals of a round, in the order of device numbers."""
    update = model.new_zeros(len(model))
    for arrival in arrivals:
        subtract_from(update, arrival, -1.0 / terms.devices)
    return update


def dense_update(model: Tensor, arrival: Arrival) -> Tensor:
    """S(x) as a dense vector, with zeros for entries that were not sent."""
    update = model.new_zeros(len(model))
    subtract_from(update, arrival, -1.0)
    return update


def step_along(model: Tensor, direction: Tensor, step: float, terms: ServerTerms) -> Tensor:
    """w <- w - step d. Normalisation statistics move by d, because a running mean must not overshoot."""
    parameters = len(model) - terms.statistics
    stepped = model - direction
    stepped[:parameters] = model[:parameters].sub(direction[:parameters], alpha=step)
    return stepped


@dataclass(frozen=True)
class Add(ServerRule):
    """Algorithm 1: w <- w - (1/N) sum of S(x) over the arrivals of a round, in the order of device numbers."""

    takes_pieces = True
    one_by_one = True
    changes_only_sent = True

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        model = model.clone()
        for arrival in arrivals:
            subtract_from(model, arrival, 1.0 / terms.devices)
        return model, state

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        return -terms.devices * model.double()


@dataclass(frozen=True)
class Optimise(ServerRule):
    """An optimiser step along the mean update of a round (Reddi et al. 2021), set by the scenario's `server`.

    Normalisation statistics bypass the optimiser: a running mean must not overshoot.
    """

    server: Server = field(default_factory=Server)

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        """No momentum. Adam's second moments start at epsilon^2, so that the first step is not large."""
        rest = model.new_zeros(len(model) - terms.statistics)
        match self.server.optimizer:
            case "sgd":
                return NO_STATE
            case "momentum":
                return {"mean": rest}
            case "adam":
                return {"mean": rest, "square": rest.new_full((len(rest),), self.server.epsilon**2)}

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        server, update = self.server, mean_update(model, arrivals, terms)
        parameters = len(model) - terms.statistics
        towards = update[:parameters]
        match server.optimizer:
            case "sgd":
                direction = towards
            case "momentum":
                direction = towards.add(state["mean"], alpha=server.momentum)
                state = {"mean": direction}
            case "adam":
                mean = towards.lerp(state["mean"], server.momentum)
                square = towards.square().lerp(state["square"], server.second_moment)
                state, direction = {"mean": mean, "square": square}, mean / (square.sqrt() + server.epsilon)
        update[:parameters] = direction
        return step_along(model, update, server.step_size, terms), state

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        """From m <- b m + d and w <- w - step m: the sum of all d is b m - (1 - b) w / step."""
        if self.server.optimizer == "adam":
            return None
        total, parameters = -model.double(), len(model) - terms.statistics
        total[:parameters] /= self.server.step_size
        if self.server.optimizer == "momentum":
            total[:parameters] += self.server.momentum * (state["mean"] - total[:parameters])
        return terms.devices * total


@dataclass(frozen=True)
class Mix(ServerRule):
    """FedAsync (Xie, Koyejo and Gupta 2019): w <- (1 - a) w + a w_n, with a weight a that falls with staleness."""

    staleness: StalenessFunction = "polynomial"
    mixing: Mixing = field(default_factory=Mixing)

    takes = "models"
    one_by_one = True

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        model = model.clone()
        for arrival in arrivals:
            weight = self.weight(arrival.staleness_rounds)
            if not 0 <= weight <= 1:
                raise InvariantError(f"weight = {weight!r} of device {arrival.device}, must be 0 to 1")
            model.lerp_(arrival.sent.values, weight)
        return model, state

    def weight(self, staleness_rounds: int) -> float:
        """a s(theta), with s = 1, (theta + 1)^-c, or 1 up to b and 1 / (d (theta - b) + 1) above."""
        mixing = self.mixing
        if self.staleness == "polynomial":
            return mixing.weight * math.pow(staleness_rounds + 1.0, -mixing.polynomial_exponent)
        if self.staleness == "hinge" and staleness_rounds > mixing.hinge_rounds:
            return mixing.weight / (mixing.hinge_slope * (staleness_rounds - mixing.hinge_rounds) + 1.0)
        return mixing.weight
