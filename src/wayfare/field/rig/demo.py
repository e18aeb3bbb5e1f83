"""A fleet on one machine: real processes, sockets and keys, and the contacts of a plan."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from wayfare.errors import InputError
from wayfare.field.fleet import Fleet, create_fleet, load_bundle
from wayfare.field.rig.audit import Audit, as_format_5, audit, audit_later_life
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.conductor import Conductor
from wayfare.field.rig.faults import Faults
from wayfare.field.rig.processes import Member
from wayfare.field.rig.proxy import Link
from wayfare.field.runtime.backup import back_up
from wayfare.field.runtime.device import STORE, DeviceOptions, open_store, run_device
from wayfare.field.runtime.exchange import Patience
from wayfare.field.runtime.housekeeping import HousekeepingOptions
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.mes import ServerOptions, open_intake, run_server
from wayfare.field.runtime.work import Work
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.tasks import Evaluation
from wayfare.simulator import Observer, Simulation
from wayfare.streams import FLEET, Stream, generator
from wayfare.threads import one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    folder: Path  # of keys, stores and logs
    speedup: float = 60.0
    strict: bool = False  # contacts end as planned; devices guide themselves
    faults: int = 0
    fault_seed: int = 0
    step_every_s: float = 0.0
    on_round: Callable[[int], None] = field(default=lambda round_: None)
    on_stage: Callable[[str], None] = field(default=lambda text: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    contacts: int
    seconds: float
    audit: Audit
    faults: dict[str, int]  # by kind
    sent_bytes: int  # by all devices, over their links
    received_bytes: int
    evaluation: Evaluation
    simulated: Evaluation | None  # the same plan in the simulator; None if devices guide themselves
    difference: float | None  # |field - simulator| / |simulator|


def run_demo(work: Work, options: DemoOptions) -> DemoOutcome:
    """Build a fleet, play its plan, and verify that nothing was lost or counted twice."""
    if options.folder.exists() and any(options.folder.iterdir()):
        raise InputError(f"{options.folder}: must be a new or empty folder")
    if not options.speedup > 0:
        raise InputError(f"speedup = {options.speedup!r}: must be above 0")
    world = work.world
    if not len(world.meets):
        raise InputError("the plan has no contacts; use more rounds or a smaller area")
    options.on_stage("keys and certificates")
    names = [f"device-{number}" for number in range(work.scenario.fleet.devices)]
    fleet = create_fleet(options.folder / "fleet", devices=names)
    # The nats library logs every lost connection.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    began_s = time.monotonic()
    sent, received, faults = asyncio.run(_live(work, options, fleet))
    seconds = time.monotonic() - began_s
    options.on_stage("audit")
    model, found = _audited(work, options, fleet)
    evaluate = Evaluator(world.task)
    simulated = difference = None
    with one_thread():
        evaluation = evaluate(model)
        # The noise of private devices is secret, so the simulator cannot repeat it.
        if not options.strict and work.method.privacy is None:
            options.on_stage("the same plan in the simulator")
            expected = Simulation(world, work.method, _SilentObserver(), engine=work.engine_name).run().model
            difference = float((model - expected).double().norm() / expected.double().norm())
            simulated = evaluate(expected)
    return DemoOutcome(
        contacts=len(world.meets),
        seconds=seconds,
        audit=found,
        faults=dict(faults),
        sent_bytes=sent,
        received_bytes=received,
        evaluation=evaluation,
        simulated=simulated,
        difference=difference,
    )


async def _live(work: Work, options: DemoOptions, fleet: Fleet) -> tuple[int, int, Counter[str]]:
    """Run all processes; stop every one of them, also on an error."""
    folder, world = options.folder, work.world
    with ExitStack() as ending:
        options.on_stage("broker, server and devices")
        broker = ending.enter_context(Broker(fleet, store=folder / "broker", port=0))
        links = [await Link(broker.port).start() for _ in fleet.devices]
        serves = ServerOptions(
            state=folder / "server",
            url=broker.url,
            by_plan=not options.strict,
            # The audit compares every chunk.
            housekeeping=HousekeepingOptions(window=None),
        )
        serve = partial(run_server, load_bundle(fleet.server_folder), work, serves)
        server = Member("server", serve, folder / "server.log")
        devices = []
        for number, name in enumerate(fleet.devices):
            learns = _device_options(work, options, name, links[number].url)
            learn = partial(run_device, load_bundle(fleet.device_folder(name)), number, work, learns)
            devices.append(Member(name, learn, folder / f"{name}.log"))
        for member in (server, *devices):
            ending.callback(member.kill)
            member.start()

        def check() -> None:
            for member in (server, *devices):
                member.check()

        rng = generator(options.fault_seed, Stream.FIELD_FAULTS, FLEET)
        faults = Faults(options.faults, rng, links, devices, server, broker) if options.faults else None
        stores = [folder / name / STORE for name in fleet.devices]
        conductor = Conductor(world, links, stores, speedup=options.speedup, check=check)
        # Start the clock when all processes are ready: importing PyTorch takes seconds.
        while not all(store.exists() for store in stores):
            check()
            await asyncio.sleep(0.05)
        options.on_stage("contacts")
        await (conductor.strictly if options.strict else conductor.patiently)(faults, options.on_round)
        for member in (*devices, server):
            await asyncio.to_thread(member.stop)
        for link in links:
            await link.stop()
    carried = sum(link.up.carried_bytes for link in links), sum(link.down.carried_bytes for link in links)
    return *carried, faults.done if faults else Counter()


def _device_options(work: Work, options: DemoOptions, name: str, url: str) -> DeviceOptions:
    round_s = work.scenario.round_s / options.speedup
    # Short timeouts in a soak test: retry hanging requests while the contact lasts.
    hasty = Patience(answer_s=0.5, mark_s=0.5) if options.faults or options.strict else Patience()
    return DeviceOptions(
        state=options.folder / name,
        url=url,
        by_plan=not options.strict,
        step_every_s=round_s if options.strict else 0.0,
        exchange_every_s=round_s,
        audit=True,
        patience=hasty,
    )


def _audited(work: Work, options: DemoOptions, fleet: Fleet) -> tuple[torch.Tensor, Audit]:
    server = ServerOptions(state=options.folder / "server", by_plan=not options.strict)
    intake = open_intake(load_bundle(fleet.server_folder), work, server)
    outboxes = [
        open_store(load_bundle(fleet.device_folder(name)), number, work, _device_options(work, options, name, ""))
        for number, name in enumerate(fleet.devices)
    ]
    try:
        found = audit(intake.ledger, outboxes, work.layout)
        _live_on(work, options, fleet, intake.ledger.model)
        return intake.ledger.state.judged, found
    finally:
        intake.ledger.close()
        for outbox in outboxes:
            outbox.close()


def _live_on(work: Work, options: DemoOptions, fleet: Fleet, model: torch.Tensor) -> None:
    """Audit a migration, a rollback and compactions on a copy, because they change the ledger."""
    copy = options.folder / "server-copy"
    back_up(options.folder / "server", copy)
    as_format_5(copy / FILE)
    server = ServerOptions(state=copy, by_plan=not options.strict)
    intake = open_intake(load_bundle(fleet.server_folder), work, server)
    try:
        audit_later_life(intake.ledger, model)
    finally:
        intake.ledger.close()
        shutil.rmtree(copy)


class _SilentObserver(Observer):
    """Ignores all events of a simulation."""
