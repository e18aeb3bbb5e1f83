"""Fleets without a broker: real devices and a real server, joined by function calls, end with the simulator's model.

What the simulator ends with is held by its goldens (``tests/simulator/goldens.py``), and so is this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.field.brokers import finish
from tests.simulator import goldens
from tests.simulator.golden_cases import Case
from wayfare.device import terms_of
from wayfare.engine.compute import one_thread
from wayfare.field.runtime.device import DeviceOptions, make_guide, open_store
from wayfare.field.runtime.exchange import Exchanger, Patience, Radio
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.mes import ServerOptions, open_intake
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.trainer import LocalTrainer
from wayfare.field.runtime.work import Work

EAGER = Patience(idle_s=0.002, again_s=0.002)


class Direct:
    """A connection of one device that hands every message to the server's intake, and the marks back."""

    def __init__(self, intake: Intake, device: int) -> None:
        self._intake, self._device = intake, device
        self.connected = asyncio.Event()
        self.connected.set()

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> None:
        self._on_mark = cb

    async def request(self, subject: str, data: bytes, **_: object) -> Any:
        match subject.rpartition(".")[2]:
            case "chunk":
                for _, mark in self._intake.chunks([(self._device, data)]):
                    await self._on_mark(SimpleNamespace(data=mark.packed()))
                return SimpleNamespace(data=b"{}")
            case "ask":
                return SimpleNamespace(data=self._intake.ask(self._device, data).packed())
            case "finish":
                return SimpleNamespace(data=self._intake.finish(self._device, data).packed())
            case _:
                return SimpleNamespace(data=self._intake.part(self._device, data))


async def live(work: Work, names: list[str], intake: Intake, folder: Path) -> list[Outbox]:
    """Every device trains and exchanges by the plan, to its last contact."""

    async def one(number: int, name: str) -> Outbox:
        options, scheme = DeviceOptions(state=folder / name, by_plan=True), work.scheme
        outbox, guide = open_store(name, number, work, options), make_guide(number, work, options)
        between = scheme.trains_between_contacts
        trainer = LocalTrainer(outbox, work.engine(), number, guide, between_contacts=between)
        radio = Radio(scheme=scheme, terms=terms_of(work.scenario, scheme, work.world.link))
        exchanger = Exchanger(Direct(intake, number), name, outbox, guide, radio, work.layout, EAGER)
        exchanging = asyncio.ensure_future(exchanger.run(threading.Event()))
        while not exchanging.done():
            trainer._burst()
            await asyncio.sleep(EAGER.idle_s)
        await exchanging
        return outbox

    return await asyncio.gather(*(one(number, name) for number, name in enumerate(names)))


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("mads", ""),
        ("mads-rd", ""),
        ("mads-rd:progressive", "control.weight=auto"),
        ("sfl-spar:paced", ""),
        ("afl", ""),
    ],
)
def test_a_fleet_ends_with_the_vectors_of_the_simulator_to_the_bit(scheme: str, changes: str, tmp_path: Path) -> None:
    case = Case(scheme, f"rounds=30 {changes}", "reference")
    simulated = goldens.run(case)
    work = Work(scenario=case.world().scenario, scheme_name=scheme, engine_name="reference")
    names = [f"device-{number}" for number in range(work.scenario.fleet.devices)]
    intake = open_intake(work, names, ServerOptions(state=tmp_path / "server", by_plan=True))
    with closing(intake.ledger), ExitStack() as stores:
        with one_thread():
            outboxes = finish(live(work, names, intake, tmp_path))
        for outbox in outboxes:
            stores.enter_context(closing(outbox))
        assert not torch.equal(intake.ledger.model, simulated.initial)
        assert torch.equal(intake.ledger.model, simulated.model)
        for outbox, memory in zip(outboxes, simulated.memories, strict=True):
            assert torch.equal(outbox.state.memory, memory)
