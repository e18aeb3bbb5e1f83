"""What the tests of the field runtime share: a small model, stores, and processes that die at a chosen statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.device import Meeting, Terms, contact, payload
from wayfare.field.runtime.aggregation import Aggregation
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.outbox import OpenUpdate, Outbox
from wayfare.field.runtime.rules import Limits
from wayfare.methods import Encounter, Method, ServerRule, ServerTerms, Upload, UploadRule, make_method
from wayfare.methods.servers import Add
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.server import Senders

LAYOUT = Layout.of("small", [(300,)], statistics=4)
ENTRIES = LAYOUT.parameters + LAYOUT.statistics
FLEET = 3


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
        return Upload(entries=self.entries, bits=1.0, power_watts=0.1, energy_joules=0.01)


METHOD = make_method(Fixed(), Scenario())


def open_outbox(folder: Path, *, audit: bool = True, method: Method = METHOD) -> Outbox:
    file = folder / "device.sqlite"
    return Outbox(file, INITIAL, method, layout=LAYOUT, budget_joules=10.0, identity="one", audit=audit)


def aggregation(rule: ServerRule | None = None, average_rounds: int = 0) -> Aggregation:
    """What the server does with the uploads of a small fleet."""
    return Aggregation(
        rule=rule or Add(),
        terms=ServerTerms(devices=FLEET, statistics=LAYOUT.statistics),
        senders=Senders(samples=tuple(range(10, 10 + FLEET)), learning_rate=0.1),
        average_rounds=average_rounds,
    )


def open_ledger(folder: Path, limits: Limits | None = None, rule: Aggregation | None = None) -> Ledger:
    return Ledger(folder, INITIAL, layout=LAYOUT, aggregation=rule or aggregation(), identity="fleet", limits=limits)


def train(outbox: Outbox, seed: int, round_: int) -> None:
    start = outbox.local
    outbox.trained(start, start + noise(seed, 0.1), round_)


def cut(
    outbox: Outbox,
    round_: int,
    entries: int = 200,
    *,
    chunk_bytes: int = 300,
    next_update: int = 1,
    method: Method = METHOD,
) -> OpenUpdate | None:
    """A contact that sends so many entries, as the exchanger cuts it."""
    method = replace(method, upload=Fixed(entries))
    meeting = Meeting(round=round_, contact_s=1.0, gain_per_watt=1e3)
    sending = contact(outbox.state, outbox.local, meeting, Terms(method=method, link=LINK, rounds=100))
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
