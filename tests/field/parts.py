"""What the tests of the field runtime share: a small model, stores, and processes that die at a chosen statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.device import transmit
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.outbox import OpenUpdate, Outbox
from wayfare.field.runtime.rules import Limits
from wayfare.methods import Encounter, Upload
from wayfare.radio import Link

LAYOUT = Layout.of("small", [(300,)], statistics=4)
ENTRIES = LAYOUT.parameters + LAYOUT.statistics
FLEET = 3


def noise(seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(ENTRIES, generator=torch.Generator().manual_seed(seed)) * scale


INITIAL = noise(0)


def open_outbox(folder: Path, *, audit: bool = True) -> Outbox:
    return Outbox(folder / "device.sqlite", INITIAL, layout=LAYOUT, budget_joules=10.0, identity="one", audit=audit)


def open_ledger(folder: Path, limits: Limits | None = None) -> Ledger:
    return Ledger(folder, INITIAL, layout=LAYOUT, devices=FLEET, identity="fleet", limits=limits)


def train(outbox: Outbox, seed: int, round_: int) -> None:
    start = outbox.local
    outbox.trained(start, start + noise(seed, 0.1), round_)


def cut(
    outbox: Outbox, round_: int, entries: int = 200, *, chunk_bytes: int = 300, next_update: int = 1
) -> OpenUpdate | None:
    """A contact that sends so many entries, as the exchanger cuts it."""
    from wayfare.device import Offer

    state = outbox.state
    encounter = Encounter(
        contact_s=1.0, gain_per_watt=1.0, staleness_rounds=1, update_norm_sq=1.0, backlog_joules=0.0,
        spent_joules=state.spent_joules, budget_joules=state.budget_joules, round=round_, rounds=100, met_s=1.0,
    )  # fmt: skip
    update = state.memory + (state.received - outbox.local)
    offer = Offer(state=state, update=update, parameters=LAYOUT.parameters, encounter=encounter, update_is_sound=True)
    link = Link(
        bandwidth_hz=1e3, max_power_watts=0.2, parameters=LAYOUT.parameters, bits_per_entry=40.0, dense_bits=1e6
    )
    sending = transmit(offer, Upload(entries=entries, bits=1.0, power_watts=0.1, energy_joules=0.1), link)
    return outbox.cut(
        replace(sending.state), sending.sent, round_=round_, next_update=next_update, chunk_bytes=chunk_bytes
    )


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
