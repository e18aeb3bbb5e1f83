"""What the tests of the field runtime share: a small model, stores, and processes that die at a chosen statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.device import DeviceState, Meeting, Terms, contact, payload
from wayfare.field.runtime.aggregation import Aggregation
from wayfare.field.runtime.guide import Occasion
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.rules import Limits
from wayfare.field.runtime.stores import OpenUpdate, Progress
from wayfare.methods import (
    Arrival,
    Encounter,
    LocalRule,
    Method,
    ServerRule,
    ServerTerms,
    State,
    Upload,
    UploadRule,
    make_method,
)
from wayfare.methods.guard import Guard
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.servers import Add, Mix, mean_update
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.server import Senders
from wayfare.sparsify import Sparse

LAYOUT = Layout.of("small", [(300,)], statistics=4)
ENTRIES = LAYOUT.parameters + LAYOUT.statistics
NAMES = ("bus-1", "bus-2", "drone")
FLEET = len(NAMES)


def noise(seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(ENTRIES, generator=torch.Generator().manual_seed(seed)) * scale


INITIAL = noise(0)


LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=LAYOUT.parameters, bits_per_entry=42.0, dense_bits=9600.0)


@dataclass(frozen=True)
class Fixed(UploadRule):
    """So many entries in every contact."""

    entries: int = 200
    name = "fixed"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        bits = min(self.entries * link.bits_per_entry + link.statistics_bits, link.dense_bits)
        energy_joules = link.energy_joules(bits, 0.1, encounter.gain_per_watt)
        return Upload(entries=self.entries, bits=bits, power_watts=0.1, energy_joules=energy_joules)


class Told:
    """A guide that exchanges so many times, and notes what it hears."""

    def __init__(self, exchanges: int = 1, *, resumes: bool = True) -> None:
        self.left, self._resumes = exchanges, resumes
        self.heard: list[str | float] = []

    def trains_until(self, progress: Progress, state: DeviceState) -> int:
        return state.received_round + 1000

    def samples(self) -> int | None:
        return None

    def loss(self) -> float | None:
        return None

    def wait(self, seconds: float) -> None:
        self.heard.append(f"wait {seconds:.0f}")

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        if self.left <= 0:
            return None
        return Occasion(round=progress.cut_round + 1, contact_s=1.0, gain_per_watt=1e3, chunk_bytes=300)

    def resumes(self, progress: Progress) -> bool:
        return self._resumes

    def is_over(self, progress: Progress) -> bool:
        return self.left <= 0

    def in_reach(self) -> None:
        self.heard.append("in reach")

    def out_of_reach(self) -> None:
        self.heard.append("out of reach")

    def measured(self, bits: float, seconds: float) -> None:
        assert 0 <= seconds < 30
        self.heard.append(bits)

    def bits(self) -> float:
        return sum(heard for heard in self.heard if not isinstance(heard, str))

    def exchanged(self) -> None:
        self.left -= 1


@dataclass(frozen=True)
class Moving(ErrorFeedback):
    """A memory rule that remembers vectors, numbers and tables, and whose memory may be one zero for all entries."""

    conserves = False

    def init(self, like: Tensor) -> State:
        return {"velocity": torch.zeros_like(like), "contacts": 0, "by": {"returned": like.new_zeros(len(like))}}

    def offer(self, memory: Tensor, change: Tensor, state: Any) -> tuple[Tensor, State]:
        velocity = change + 0.5 * state["velocity"]
        return memory + velocity, {**state, "velocity": velocity, "contacts": state["contacts"] + 1}

    def keep(self, update: Tensor, sent: Sparse, state: Any) -> tuple[Tensor, State]:
        return update.new_zeros(()).expand(len(update)), {**state, "share": np.float64(len(sent) / len(update))}

    def take_back(self, memory: Tensor, returned: Sparse, state: Any) -> tuple[Tensor, State]:
        memory, state = super().take_back(memory, returned, state)
        total = state["by"]["returned"].index_add(0, returned.indices, returned.values)
        return memory, {**state, "by": {"returned": total}}


@dataclass(frozen=True, kw_only=True)
class Correcting(LocalRule):
    """A local rule that corrects gradients by what was delivered, and counts the models it received."""

    corrects = True

    def init(self, like: Tensor) -> State:
        return {"delivered": torch.zeros_like(like), "models": 0}

    def delivered(self, state: Any, change: Tensor) -> State:
        return {**state, "delivered": state["delivered"] + change}

    def received(self, state: Any, handed: State) -> State:
        return {**state, "models": state["models"] + 1}

    def correction(self, state: Any) -> Tensor | None:
        return state["delivered"]


@dataclass(frozen=True)
class Pairs(ServerRule):
    """A server rule that steps along every second upload and what each device sent last."""

    def init(self, model: Tensor, terms: ServerTerms) -> State:
        return {"sum": torch.zeros_like(model), "count": 0, "last": {}}

    def apply(self, model: Tensor, state: Any, arrivals: Sequence[Arrival], terms: ServerTerms) -> Any:
        for arrival in arrivals:
            update = mean_update(model, [arrival], terms) * arrival.reach * arrival.samples
            total, last = state["sum"] + update, {**state["last"], str(arrival.device): update}
            state = {"sum": total, "count": state["count"] + 1, "last": last}
            if state["count"] == 2:
                model = model - total + 0.01 * sum(last.values())
                state = {**state, "sum": torch.zeros_like(model), "count": 0}
        return model, state


METHOD = make_method(Fixed(), Scenario())
REMEMBERING = replace(METHOD, memory=Moving(), local=Correcting())
MIXING = replace(METHOD, server=Mix())


def open_outbox(folder: Path, *, audit: bool = True, method: Method = METHOD) -> Outbox:
    file = folder / "device.sqlite"
    return Outbox(file, INITIAL, method, layout=LAYOUT, budget_joules=10.0, identity={"fleet": "one"}, audit=audit)


def aggregation(rule: ServerRule | None = None, average_rounds: int = 0, guard: Guard | None = None) -> Aggregation:
    """What the server does with the uploads of a small fleet."""
    return Aggregation(
        rule=rule or Add(),
        terms=ServerTerms(devices=FLEET, statistics=LAYOUT.statistics),
        senders=Senders(samples=tuple(range(10, 10 + FLEET)), learning_rate=0.1),
        average_rounds=average_rounds,
        guard=guard,
    )


def open_ledger(folder: Path, limits: Limits | None = None, rule: Aggregation | None = None) -> Ledger:
    return Ledger(
        folder,
        INITIAL,
        layout=LAYOUT,
        aggregation=rule or aggregation(),
        identity={"fleet": "fleet"},
        names=NAMES,
        limits=limits,
    )


def train(outbox: Outbox, seed: int, round_: int) -> None:
    start = outbox.local
    outbox.trained(start, start + noise(seed, 0.1), round_)


def terms_with(method: Method) -> Terms:
    return Terms(method=method, link=LINK, rounds=100)


def cut(
    outbox: Outbox,
    round_: int,
    entries: int = 200,
    *,
    chunk_bytes: int = 300,
    next_update: int = 1,
    method: Method = METHOD,
) -> OpenUpdate | None:
    """A contact that sends so many entries, or a whole model where models are mixed, as the exchanger cuts it."""
    if method.server.takes == "models":
        entries = LAYOUT.parameters
    method = replace(method, upload=Fixed(entries))
    meeting = Meeting(round=round_, contact_s=1.0, gain_per_watt=1e3)
    sending = contact(outbox.state, outbox.local, meeting, terms_with(method))
    sent = payload(sending, outbox.local, method) or sending.sent
    return outbox.cut(sending.state, sent, round_=round_, next_update=next_update, chunk_bytes=chunk_bytes)


def undelivered(outbox: Outbox) -> Tensor:
    """All mass that lies on a device: learned since the last cut, remembered, promised."""
    from wayfare.field.runtime.messages import unpack

    state = outbox.state
    total = (state.received.double() - outbox.local.double()) + state.memory.double()
    promised = outbox.open_update()
    for _, data in outbox.pending(promised.number) if promised else []:
        entries = unpack(data, LAYOUT).entries
        total = total.index_add(0, entries.indices, entries.values.double())
    return total


def dies_at(statement: int, connection: object, work: Callable[[], None]) -> bool:
    """Do some work in a child process that kills itself before a statement of SQLite; whether it came so far."""
    child = os.fork()
    if child == 0:
        seen = 0

        def trace(_: str) -> None:
            nonlocal seen
            seen += 1
            if seen == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            connection.set_trace_callback(trace)  # type: ignore[attr-defined]
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
