"""Fleets without a broker: real devices and a real server, joined by function calls, end with the simulator's model.

What the simulator ends with is held by its goldens (``tests/simulator/goldens.py``), and so is this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.field.brokers import finish
from tests.field.without_broker import Unsealed
from tests.simulator import goldens
from tests.simulator.golden_cases import Case
from wayfare.errors import ScenarioError
from wayfare.field.fleet import Bundle
from wayfare.field.rig.audit import Audit, audit
from wayfare.field.runtime.device import DeviceOptions, make_guide, open_store
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.mes import ServerOptions, open_intake
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.trainer import LocalTrainer
from wayfare.field.runtime.work import Work
from wayfare.methods import make_method
from wayfare.methods.registry import TABLE
from wayfare.scenario import Scenario
from wayfare.threads import one_thread

EAGER = Patience(idle_s=0.002, again_s=0.002)


class Direct:
    """A connection of one device that hands every message to the server's intake, and the marks back."""

    def __init__(self, intake: Intake, device: int) -> None:
        self._intake, self._device = intake, device
        self.connected = asyncio.Event()
        self.connected.set()

    def device_end(self, name: str) -> Unsealed:
        return Unsealed()

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> None:
        self._on_mark = cb

    async def request(self, subject: str, data: bytes, **settings: object) -> Any:
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


def bundle_of(name: str) -> Bundle:
    return Bundle(folder=Path(), fleet="small", fleet_id="0", name=name, url="")


async def live(work: Work, names: Sequence[str], intake: Intake, folder: Path) -> list[Outbox]:
    """Every device trains and exchanges by the plan, to its last contact."""

    async def one(number: int, name: str) -> Outbox:
        options, radio = DeviceOptions(state=folder / name, by_plan=True, audit=True), Radio(terms=work.terms)
        outbox, guide = open_store(bundle_of(name), number, work, options), make_guide(number, work, options)
        trainer = LocalTrainer(outbox, work.engine(), number, guide, work.terms)
        exchanger = Exchanger(Direct(intake, number), name, outbox, guide, radio, work.layout, EAGER)
        exchanging = asyncio.ensure_future(exchanger.run(threading.Event()))
        while not exchanging.done():
            trainer._burst()
            await asyncio.sleep(EAGER.idle_s)
        await exchanging
        return outbox

    return await asyncio.gather(*(one(number, name) for number, name in enumerate(names)))


def fleet_of(case: Case, folder: Path) -> Audit:
    """A fleet lives through the plan of a case, and ends with the vectors of the simulator to the bit."""
    simulated = goldens.run(case)
    work = Work(scenario=case.world().scenario, scheme_name=case.scheme, engine_name="reference", guard=None)
    names = tuple(f"device-{number}" for number in range(work.scenario.fleet.devices))
    bundle = replace(bundle_of("mes"), devices=names)
    options = ServerOptions(state=folder / "server", by_plan=True)
    intake = open_intake(bundle, work, options)
    with ExitStack() as stores:
        with closing(intake.ledger), one_thread():
            outboxes = finish(live(work, names, intake, folder))
        for outbox in outboxes:
            stores.enter_context(closing(outbox))
        # What is on the disk is all that there is.
        intake = open_intake(bundle, work, options)
        stores.enter_context(closing(intake.ledger))
        assert not torch.equal(intake.ledger.model, simulated.initial)
        assert torch.equal(intake.ledger.state.judged, simulated.model)
        # A device that can never send again trains no more in the simulator.
        min_upload_joules = work.method.upload.min_upload_joules(work.terms.link)
        for outbox, memory in zip(outboxes, simulated.memories, strict=True):
            if min_upload_joules == 0 or outbox.state.left_joules >= min_upload_joules:
                assert torch.equal(outbox.state.memory, memory)
        return audit(intake.ledger, outboxes, work.layout)


IN_SIMULATOR_ONLY = [name for name in TABLE if make_method(name, Scenario()).peers is not None]


@pytest.mark.parametrize("scheme", [name for name in TABLE if name not in IN_SIMULATOR_ONLY])
def test_every_method_of_the_table_ends_with_the_vectors_of_the_simulator_to_the_bit(
    scheme: str, tmp_path: Path
) -> None:
    found, method = fleet_of(Case(scheme, "rounds=30", "reference"), tmp_path), make_method(scheme, Scenario())
    assert found.recorded > 0
    assert (found.mass_error is not None) == (method.memory.conserves and method.server.takes == "updates")


@pytest.mark.parametrize("scheme", IN_SIMULATOR_ONLY)
def test_a_method_that_needs_other_messages_than_the_fields_is_refused(scheme: str) -> None:
    with pytest.raises(ScenarioError, match=f"scheme = '{scheme}': .*in the field"):
        Work(scenario=Scenario(), scheme_name=scheme)


RECOMMENDED = "control.weight=auto learning.local_loss=logit-adjusted server.step=5 server.average_rounds=10"


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("mads-rd", RECOMMENDED),
        ("mads-rd:progressive", "control.weight=auto"),
        # Contacts that end while a piece is on its way.
        ("mads-rd:progressive", "control.weight=auto contacts.forecast_error=0.5"),
        ("afl:fitting", "contacts.forecast_error=0.3"),
        ("sfl-spar:paced", ""),
        ("mads", "server.optimizer=momentum"),
        ("mads", "server.optimizer=adam server.average_rounds=10"),
        ("afl-spar:paced", "server.step=5"),
        ("afl-spar:paced", "server.optimizer=adam"),
        ("fedasync:paced", "server.average_rounds=10"),
        ("fedasync:hinge", ""),
        ("mads", "learning.local_loss=prox"),
        ("mads", "fleet.devices=13 learning.partition.kind=by-group server.weighting=samples"),
        ("fedasync:paced", "learning.local_loss=prox"),
        ("mads", "learning.schedule=cosine"),
        ("afl-spar:paced + decay", ""),
        ("afl + forgetting", ""),
        ("mads + sgd(momentum=0.9, steps_per_round=2)", ""),
        ("afl + sgd(prox=0.1, clip_norm=1.0, weight_decay=1e-3)", "learning.schedule=linear"),
    ],
)
def test_a_fleet_ends_with_the_vectors_of_the_simulator_to_the_bit(scheme: str, changes: str, tmp_path: Path) -> None:
    fleet_of(Case(scheme, f"rounds=30 {changes}", "reference"), tmp_path)
