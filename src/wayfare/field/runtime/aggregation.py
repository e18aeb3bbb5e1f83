"""What the server makes of uploads: the same rule and the same mean as in the simulator, version by version."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.errors import InvariantError
from wayfare.field.runtime.messages import Chunk, joined
from wayfare.methods import Arrival, Method, ServerRule, ServerTerms
from wayfare.server import Senders, ServerState, aggregate, average, begin_server, senders_of
from wayfare.world import World

# Models of the latest versions, for devices that take one while the next is already made.
_MOST_PAST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The server rule, what it knows, and how long the mean of its models is."""

    rule: ServerRule
    terms: ServerTerms
    senders: Senders
    average_rounds: int = 0

    def begin(self, model: Tensor) -> ServerState:
        return begin_server(model, self.rule, self.terms, averages=self.average_rounds > 0)

    def arrivals(self, chunks: Iterable[tuple[int, Chunk]]) -> list[Arrival]:
        """Uploads put together again of the chunks of devices, in the order in which they are given."""
        arrivals = []
        for (device, _), group in groupby(chunks, key=lambda pair: (pair[0], pair[1].update)):
            pieces = [chunk for _, chunk in group]
            sent, round_ = joined([piece.entries for piece in pieces]), pieces[0].round
            stale = round_ - pieces[0].received_round
            arrivals.append(self.senders.arrival(device, sent, round_=round_, staleness_rounds=stale))
        return arrivals

    def after_round(self, state: ServerState, round_: int, arrivals: Sequence[Arrival]) -> ServerState:
        return average(aggregate(state, self.rule, arrivals, self.terms), round_, self.average_rounds)


def aggregation_of(world: World, method: Method) -> Aggregation:
    scenario = world.scenario
    return Aggregation(
        rule=method.server,
        terms=ServerTerms(devices=scenario.fleet.devices, statistics=world.task.model.statistics),
        senders=senders_of(world, method),
        average_rounds=scenario.server.average_rounds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The server at the end of a round. Where there is no plan, every version is a round of its own."""

    version: int
    round: int
    state: ServerState
    changed: NDArray[np.int64]  # the version that last changed each entry of the model


class Versions:
    def __init__(self, aggregation: Aggregation, begin: Snapshot) -> None:
        self._aggregation = aggregation
        self.latest = begin
        self._past: OrderedDict[int, Tensor] = OrderedDict({begin.version: begin.state.model})

    @classmethod
    def from_first(cls, aggregation: Aggregation, initial: Tensor) -> Versions:
        unchanged = np.zeros(len(initial), dtype=np.int64)
        return cls(aggregation, Snapshot(version=0, round=0, state=aggregation.begin(initial), changed=unchanged))

    def advance(self, round_: int, version: int, arrivals: Sequence[Arrival]) -> None:
        """The end of a round, in which some uploads made a version or nothing arrived; rounds before it were idle."""
        before = state = self.latest.state
        for idle in range(self.latest.round + 1, round_):
            state = self._aggregation.after_round(state, idle, ())
        state = self._aggregation.after_round(state, round_, arrivals)
        if state.model is not before.model:
            if not bool(torch.isfinite(state.model.sum())) and not bool(torch.isfinite(state.model).all()):
                raise InvariantError(f"version {version} of the model would not be finite")
            self.latest.changed[np.flatnonzero(differing(before.model, state.model))] = version
        self.latest = replace(self.latest, version=version, round=round_, state=state)
        self.remember(version, state.model)

    def find(self, version: int) -> Tensor | None:
        return self.latest.state.model if version == self.latest.version else self._past.get(version)

    def remember(self, version: int, model: Tensor) -> None:
        self._past[version] = model
        while len(self._past) > _MOST_PAST:
            self._past.popitem(last=False)


def differing(one: Tensor, other: Tensor) -> NDArray[np.bool_]:
    """Which entries differ, to the bit: a delta has to make the same bytes, and 0 is not -0."""
    different: NDArray[np.bool_] = (one.view(torch.int32) != other.view(torch.int32)).numpy()
    return different
