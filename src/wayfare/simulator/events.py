"""Events of a run: the interface between the simulator and its observers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

RelayKind: TypeAlias = Literal["upload", "delivery", "download"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactEvent:
    """One contact and how the scheme used it."""

    round: int
    device: int
    contact_s: float
    distance_m: float
    gain_per_watt: float
    staleness_rounds: int
    update_norm_sq: float
    backlog_joules: float
    power_watts: float
    entries: int
    bits: float
    energy_joules: float
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayEvent:
    """A transfer, or an attempt, on behalf of another device.

    `upload`: the owner of an update gives it to a relay. `delivery`: the relay brings it to the server; merged with
    the relay's own upload it costs nothing extra. `download`: a device gives another a newer global
    model. The server has the number -1.
    """

    round: int
    kind: RelayKind
    giver: int
    taker: int
    owner: int
    contact_s: float  # time left in the contact
    bits: float
    energy_joules: float
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent:
    """Score and loss of the global model after a round, with energy and bits so far."""

    round: int
    time_s: float
    score: float  # the task's metric
    loss: float
    energy_joules: float
    bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricEvent:
    round: int
    name: str
    value: float


class Observer(Protocol):
    """Receives all events in order. A subclass overrides only the methods it needs."""

    def on_contact(self, event: ContactEvent) -> None:
        return

    def on_relay(self, event: RelayEvent) -> None:
        """A relay transfer; only methods with a peer rule have them."""
        return

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        return

    def on_round(self, round_: int) -> None:
        """The end of a round, for progress displays."""
        return
