"""The process of a device: a trainer in one thread, an exchanger in another, and the store between them."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from wayfare.engine import Compute
from wayfare.errors import ScenarioError, WayfareError
from wayfare.field.fleet import Bundle
from wayfare.field.runtime.connect import FieldClient, connect_unless
from wayfare.field.runtime.current_model import CurrentModel
from wayfare.field.runtime.daily import DailyBytes
from wayfare.field.runtime.device_pages import device_pages
from wayfare.field.runtime.endpoint import serving
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.guide import (
    MAX_LOCAL_STEPS,
    ByExperience,
    ByPlan,
    Guide,
    Sighting,
    no_loss,
    no_samples,
    no_sighting,
)
from wayfare.field.runtime.local_data import LocalData
from wayfare.field.runtime.local_statistics import LocalStatistics
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.permission import always
from wayfare.field.runtime.radio import Radio, no_radio
from wayfare.field.runtime.trainer import LocalTrainer, always_ready
from wayfare.field.runtime.work import Work
from wayfare.field.runtime.writes import WriteLimits
from wayfare.records.lock import RunLock

_log = logging.getLogger("wayfare.field")
STORE = "device.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    state: Path  # the folder of its store
    url: str | None = None  # overrides the bundle's address of the broker
    data: Path | None = None  # the folder with its own data; None: its share of the simulated world
    compute: str = "auto"  # where it trains: a GPU if there is one
    rescan_s: float = 10.0  # between two looks for new files
    by_plan: bool = False
    steps: int | None = None  # without a plan: the number of steps; None: no end
    max_local_steps: int = MAX_LOCAL_STEPS  # after the last model
    step_every_s: float = 0.0
    exchange_every_s: float = 10.0
    current_every_s: float | None = 600.0  # between two writes of `current.safetensors`; None: never
    audit: bool = False
    writes: WriteLimits = field(default_factory=WriteLimits)
    patience: Patience = field(default_factory=Patience)
    set_power_watts: Callable[[float], None] = no_radio
    sighting: Callable[[], Sighting | None] = no_sighting
    report_loss: bool = True  # the loss of its local model, to the server; never by a private device
    may_train: Callable[[], bool] = always
    daily_bytes: float = math.inf  # sent and received in a UTC day
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no endpoint


def run_device(bundle: Bundle, number: int, work: Work, options: DeviceOptions, stop: threading.Event) -> None:
    """Train and exchange until ``stop`` is set or nothing is left to do."""
    with RunLock(options.state, inside=True):
        outbox = open_store(bundle, number, work, options)
        try:
            asyncio.run(_run(bundle, number, work, options, outbox, stop))
        finally:
            outbox.close()


def open_store(bundle: Bundle, number: int, work: Work, options: DeviceOptions) -> Outbox:
    method = work.method
    return Outbox(
        options.state / STORE,
        work.initial_model,
        method,
        layout=work.layout,
        budget_joules=float(work.world.budgets_joules[number]) if options.by_plan else work.budget_joules,
        identity=work.identity(bundle.fleet_id, bundle.name),
        # Without conservation of mass there is nothing to balance.
        audit=(options.audit and method.memory.conserves and method.server.takes == "updates")
        # What was added to the sums so far, so that later only differences are added.
        or method.local.collects() is not None,
        writes=None if options.audit else options.writes,
    )


def make_guide(
    number: int, work: Work, options: DeviceOptions, local: LocalData | LocalStatistics | None = None
) -> Guide:
    method = work.method
    if options.by_plan:
        return ByPlan(work.world, number, method.upload)
    if not method.local.trains_between_contacts:
        rule = "trains only in the rounds of its contacts, so it needs a plan"
        raise ScenarioError("scheme", work.scheme_name, rule)
    return ByExperience(
        work.link,
        device=number,
        samples=no_samples if local is None else local.samples,
        loss=local.loss if local is not None and options.report_loss else no_loss,
        max_local_steps=options.max_local_steps,
        every_s=options.exchange_every_s,
        steps=options.steps,
        sighting=options.sighting,
    )


def open_data(number: int, work: Work, options: DeviceOptions, outbox: Outbox) -> LocalData | LocalStatistics | None:
    if options.data is None:
        return None
    if work.method.local.collects() is not None:
        return LocalStatistics(
            work,
            options.data,
            options.state / "samples",
            learned=lambda: outbox.learned,
            rescan_s=options.rescan_s,
        )
    schedule, rounds = work.scenario.learning.schedule, work.scenario.rounds
    if schedule != "constant" and not (options.steps is not None and options.steps <= rounds):
        rule = (
            f"falls to 0 after `rounds` = {rounds} local steps, and a device without an end would learn no more; "
            "use constant, or limit the steps to `rounds`"
        )
        raise ScenarioError("learning.schedule", schedule, rule)
    return LocalData(
        work,
        options.data,
        options.state / "samples",
        device=number,
        compute=Compute.named(options.compute),
        rescan_s=options.rescan_s,
        settings=lambda: outbox.progress.settings,
    )


async def _run(
    bundle: Bundle, number: int, work: Work, options: DeviceOptions, outbox: Outbox, stop: threading.Event
) -> None:
    local, terms = open_data(number, work, options, outbox), work.terms
    guide = make_guide(number, work, options, local)
    trainer = LocalTrainer(
        outbox,
        work.engine() if local is None else local,
        number,
        guide,
        terms,
        step_every_s=options.step_every_s,
        ready=always_ready if local is None else local.ready,
        may_train=options.may_train,
    )
    daily = DailyBytes(options.state / "bytes.json", options.daily_bytes)
    client: FieldClient | None = None
    # The trainer runs whether or not the broker is in reach.
    training = threading.Thread(target=trainer.run, args=(stop,), name="trainer", daemon=True)
    training.start()
    # With a plan nobody does inference.
    current = None
    if options.current_every_s is not None and not options.by_plan:
        current = CurrentModel(outbox, work.model, work.layout, options.state)
    keeping = asyncio.ensure_future(_keep(current, options.current_every_s))
    try:
        async with AsyncExitStack() as ending:
            if options.metrics_port is not None:
                pages = device_pages(
                    outbox,
                    daily,
                    current,
                    lambda: client is not None and client.is_connected,
                    no_loss if local is None else local.loss,
                )
                served = serving(pages, host=options.metrics_host, port=options.metrics_port)
                port = await ending.enter_async_context(served)
                _log.info("metrics", extra={"url": f"http://{options.metrics_host}:{port}/metrics"})
            client = await connect_unless(stop, bundle, url=options.url)
            if client is not None:
                ending.push_async_callback(client.close)
                radio = Radio(
                    terms=terms,
                    daily=daily,
                    period_joules=None if options.by_plan else work.budget_joules,
                    set_power_watts=options.set_power_watts,
                )
                exchanger = Exchanger(
                    client,
                    bundle.name,
                    outbox,
                    guide,
                    radio,
                    work.layout,
                    options.patience,
                    current,
                    work.agreement,
                )
                await exchanger.run(stop)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        stop.set()
        daily.save()
        await asyncio.to_thread(training.join)
    if trainer.error is not None:
        if not isinstance(trainer.error, WayfareError):
            _log.error("training failed", exc_info=trainer.error)
        raise trainer.error
    _log.info("ended", extra={"device": bundle.name, "round": outbox.progress.finished_round})


async def _keep(current: CurrentModel | None, every_s: float | None) -> None:
    if current is not None and every_s is not None:
        await current.keep(every_s)
