"""What happens in a run, as rows: the seam between the simulator and whoever keeps the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

RelayKind: TypeAlias = Literal["upload", "delivery", "download"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactEvent:
    """One upload opportunity and what the scheme made of it."""

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
    """Something one device sent for another, or tried to.

    `upload`: the owner of an update gives it to a relay. `delivery`: the relay brings it to the server; where it went
    along with the relay's own upload it cost nothing of its own. `download`: a device gives another a newer global
    model. The server has the number -1.
    """

    round: int
    kind: RelayKind
    giver: int
    taker: int
    owner: int
    contact_s: float  # what was left of the contact
    bits: float
    energy_joules: float
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEvent:
    """The global model after a round, on the test set, and what it had cost by then."""

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
    """Told of everything that happens, in order. A subclass may leave out what it does not care for."""

    def on_contact(self, event: ContactEvent) -> None:
        return

    def on_relay(self, event: RelayEvent) -> None:
        """Something was sent for another device; only schemes that relay do so."""
        return

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        return

    def on_round(self, round_: int) -> None:
        """A round is over; for progress."""
        return
