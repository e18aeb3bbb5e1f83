"""Aggregate uploads version by version, with the same rule and mean as in the simulator."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.errors import InvariantError
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import Chunk, Settings, joined
from wayfare.methods import UNKNOWN_REACH, Arrival, ServerRule, ServerTerms
from wayfare.methods.guard import Guard
from wayfare.server import Senders, ServerState, aggregate, average, begin_server

# States of the latest versions kept, for devices that download one while the server makes the next.
_MOST_PAST = 4
# The version that includes the previous update of a device, by device and number of the update.
PreviousVersion = Callable[[int, int], float]


class Piece(NamedTuple):
    """A recorded chunk, with the weight and the samples of its device when it was applied."""

    device: int
    chunk: Chunk
    weight: float = 1.0
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The server rule, its terms, its guard, and the length of the mean of the models."""

    rule: ServerRule
    terms: ServerTerms
    senders: Senders
    average_rounds: int = 0
    guard: Guard | None = None
    membership: Membership | None = None  # None: all devices of the terms count, as in a plan
    # Settings of devices, each with the version from which they hold; a device has those of its model's version.
    changes: tuple[tuple[int, Settings], ...] = ()
    max_learning_rate: float = math.inf  # a local step must not overshoot the pull of the local rule

    def settings_at(self, version: int) -> Settings | None:
        """The settings of a device with a version of the model; None before the first change."""
        return next((settings for since, settings in reversed(self.changes) if since <= version), None)

    @property
    def takes_pieces(self) -> bool:
        """Whether pieces of an upload may be applied as they arrive. A guard judges whole uploads."""
        return self.rule.takes_pieces and self.guard is None

    def begin(self, model: Tensor) -> ServerState:
        return begin_server(model, self.rule, self.terms, averages=self.average_rounds > 0, guard=self.guard)

    def arrivals(self, pieces: Iterable[Piece], previous: PreviousVersion) -> list[Arrival]:
        """Join the chunks of each upload, in the order given.

        A device that received no model since its previous upload trained from a model that the server does not know.
        The reach of its update is then unknown.
        """
        arrivals = []
        for (device, number), group in groupby(pieces, key=lambda piece: (piece.device, piece.chunk.update)):
            parts = [*group]
            first, sent = parts[0].chunk, joined([part.chunk.scaled(part.weight).entries for part in parts])
            stale = first.round - first.received_round
            senders, settings = self.senders, self.settings_at(first.base_version)
            if settings is not None and settings.learning_rate is not None:
                senders = replace(senders, learning_rate=settings.learning_rate)
            arrival = senders.arrival(device, sent, round_=first.round, staleness_rounds=stale)
            if self.membership is not None:
                arrival = replace(arrival, samples=parts[0].samples)
            if self.rule.uses_reach and first.base_version < previous(device, number):
                arrival = replace(arrival, reach=UNKNOWN_REACH)
            arrivals.append(arrival)
        return arrivals

    def after_round(self, state: ServerState, round_: int, arrivals: Sequence[Arrival], devices: int) -> ServerState:
        state = aggregate(state, self.rule, arrivals, replace(self.terms, devices=devices), self.guard)
        return average(state, round_, self.average_rounds)


def as_begun(
    aggregation: Aggregation, identity: Mapping[str, Any], known: Any
) -> tuple[Aggregation, Mapping[str, Any]]:
    """The aggregation and the identity of a ledger that began with a guard that does not judge directions.

    Its replay stays exact without. The operator may order it to judge directions from some version on.
    """
    guard = aggregation.guard
    if guard is None or not guard.directions or not isinstance(known, Mapping):
        return aggregation, identity
    as_before = replace(guard, directions=False)
    if known.get("replay", {}).get("guard") != repr(as_before):
        return aggregation, identity
    identity = {**identity, "replay": {**identity["replay"], "guard": repr(as_before)}}
    return replace(aggregation, guard=as_before), identity


# The version that last changed each entry of the model, or could have, in half the memory as long as it fits.
Changed: TypeAlias = NDArray[np.uint32] | NDArray[np.int64]


def changed_at(version: int, changed: Changed) -> Changed:
    """The same table, with a type that can hold a version."""
    return changed.astype(np.uint32, copy=False) if version < 2**32 else changed.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The server at the end of a round. Without a plan every version is a round."""

    version: int
    round: int
    state: ServerState
    changed: Changed


class Versions:
    def __init__(self, aggregation: Aggregation, begin: Snapshot) -> None:
        self.aggregation = aggregation
        self.latest = begin
        self._past: OrderedDict[int, ServerState] = OrderedDict()
        self.remember(begin.version, begin.state)

    @classmethod
    def from_first(cls, aggregation: Aggregation, initial: Tensor) -> Versions:
        unchanged = np.zeros(len(initial), dtype=np.uint32)
        return cls(aggregation, Snapshot(version=0, round=0, state=aggregation.begin(initial), changed=unchanged))

    def advance(self, round_: int, version: int, arrivals: Sequence[Arrival], devices: int) -> None:
        """End a round, with a new version if there were arrivals of a fleet of so many devices.

        Skipped rounds before it were idle.
        """
        state = self.latest.state
        for idle in range(self.latest.round + 1, round_):
            state = self.aggregation.after_round(state, idle, (), devices)
        only_sent = self.aggregation.rule.changes_only_sent
        sent = [arrival.sent.indices.numpy() for arrival in arrivals] if only_sent else None
        self.put(round_, version, self.aggregation.after_round(state, round_, arrivals, devices), sent)

    def put(self, round_: int, version: int, state: ServerState, touched: Sequence[Ints] | None = None) -> None:
        """End a round with this state, which must be finite; at most the entries ``touched`` differ, or any."""
        before, after, changed = self.latest.state.model, state.model, changed_at(version, self.latest.changed)
        if after is not before:
            if not bool(torch.isfinite(after.sum())) and not bool(torch.isfinite(after).all()):
                raise InvariantError(f"version {version} of the model would contain NaN or infinity")
            # Nearly all entries that were sent differ: a comparison would cost more than it saves.
            for indices in (np.flatnonzero(differing(before, after)),) if touched is None else touched:
                changed[indices] = version
        self.latest = Snapshot(version=version, round=round_, state=state, changed=changed)
        self.remember(version, state)

    def find(self, version: int) -> ServerState | None:
        """The state of a version, if it is kept; it includes the rule's state only if the rule hands it down."""
        return self.latest.state if version == self.latest.version else self._past.get(version)

    def remember(self, version: int, state: ServerState) -> None:
        self._past[version] = state if self.aggregation.rule.hands_down else ServerState(model=state.model)
        while len(self._past) > _MOST_PAST:
            self._past.popitem(last=False)


def differing(one: Tensor, other: Tensor) -> NDArray[np.bool_]:
    """Which entries differ in any bit: a delta must reproduce the same bytes, and 0 is not -0."""
    # PyTorch takes half as long again.
    different: NDArray[np.bool_] = one.numpy().view(np.int32) != other.numpy().view(np.int32)
    return different
