"""The mobile edge server and its transitions: Algorithm 1, "on the MES", and two other ways to use what arrives.

Updates may go through an optimiser (Reddi et al. 2021) instead of being added as they are; models may be mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wayfare.errors import ScenarioError
from wayfare.scenario.server import Server
from wayfare.schemes import Scheme, mixes_models
from wayfare.sparsify import Sparse, subtract


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The global model, after every upload up to a round. Models are never changed in place: devices may hold them."""

    model: Tensor
    devices: int
    statistics: int = 0  # entries of normalisation at the end of the vector
    moments: tuple[Tensor, ...] = ()  # of the optimiser: m, and for Adam v, one entry for each parameter
    averaged: Tensor | None = None  # the mean of the model over the last rounds, where one is kept

    @property
    def judged(self) -> Tensor:
        """The model that is evaluated, and what a run ends with."""
        return self.model if self.averaged is None else self.averaged


def begin_server(model: Tensor, devices: int, statistics: int, server: Server) -> ServerState:
    """The server before the first round; Adam's second moments begin at epsilon^2, so that no first step is large."""
    rest = torch.zeros_like(model[: len(model) - statistics])
    match server.optimizer:
        case "sgd":
            moments: tuple[Tensor, ...] = ()
        case "momentum":
            moments = (rest,)
        case "adam":
            moments = (rest, torch.full_like(rest, server.epsilon**2))
    averaged = model if server.average_rounds else None
    return ServerState(model=model, devices=devices, statistics=statistics, moments=moments, averaged=averaged)


def refuse_unfit(server: Server, scheme: Scheme) -> None:
    """An optimiser works on updates, and a scheme that mixes models sends none."""
    if mixes_models(scheme) and not server.is_plain:
        field, value = ("step", server.step) if server.optimizer == "sgd" else ("optimizer", server.optimizer)
        rule = f"{scheme.name} mixes models, and has no updates to optimise; leave it out, or keep sgd with a step of 1"
        raise ScenarioError(f"server.{field}", value, rule)


def aggregate(state: ServerState, uploads: Sequence[Sparse]) -> ServerState:
    """w <- w - (1/N) sum of S(x) over the devices met in a round, in the order of their numbers."""
    if not any(len(upload) for upload in uploads):
        return state
    model = state.model.clone()
    for upload in uploads:
        subtract(model, upload, 1.0 / state.devices)
    return replace(state, model=model)


def mean_update(state: ServerState, uploads: Sequence[Sparse]) -> Tensor | None:
    """d = (1/N) sum of S(x) over the devices met in a round, in the order of their numbers; None if nothing arrived."""
    if not any(len(upload) for upload in uploads):
        return None
    update = torch.zeros_like(state.model)
    for upload in uploads:
        subtract(update, upload, -1.0 / state.devices)
    return update


def optimise(state: ServerState, update: Tensor, server: Server) -> ServerState:
    """A step of the optimiser along the mean update of a round.

    Statistics of normalisation are taken as they come: a running mean that overshoots is no running mean.
    """
    parameters = len(state.model) - state.statistics
    towards = update[:parameters]
    match server.optimizer:
        case "sgd":
            moments: tuple[Tensor, ...] = ()
            direction = towards
        case "momentum":
            direction = torch.add(towards, state.moments[0], alpha=server.momentum)
            moments = (direction,)
        case "adam":
            mean = torch.lerp(towards, state.moments[0], server.momentum)
            square = torch.lerp(towards.square(), state.moments[1], server.second_moment)
            moments, direction = (mean, square), mean / (square.sqrt() + server.epsilon)
    model = state.model - update
    torch.sub(state.model[:parameters], direction, alpha=server.step_size, out=model[:parameters])
    return replace(state, model=model, moments=moments)


def average(state: ServerState, round_: int, server: Server) -> ServerState:
    """At the end of every round: a <- a + (w - a) / min(round, rounds of the average).

    Which device came last sways the model when each holds few classes; the mean over many is swayed by none.
    """
    if state.averaged is None:
        return state
    return replace(state, averaged=torch.lerp(state.averaged, state.model, 1 / min(round_, server.average_rounds)))


def mix(state: ServerState, models: Sequence[tuple[Tensor, float]]) -> ServerState:
    """w <- (1 - a) w + a w_n for the devices met in a round, one after the other in the order of their numbers."""
    if not models:
        return state
    model = state.model.clone()
    for local, weight in models:
        model.lerp_(local, weight)
    return replace(state, model=model)
