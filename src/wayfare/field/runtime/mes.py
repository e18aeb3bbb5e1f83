"""The process of the mobile edge server: passes the broker's messages to the intake and returns its answers.

One thread does all work on the ledger in order, another one serves parts of models; the event loop stays free for the
broker's pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wayfare.arrays import Buffer
from wayfare.codec.errors import WireError
from wayfare.codec.whole import MAX_WHOLE
from wayfare.errors import InputError, RefusedError
from wayfare.field.fleet import Bundle
from wayfare.field.fleet.subjects import device_of, kind_of
from wayfare.field.runtime.connect import FieldClient, connect_unless
from wayfare.field.runtime.endpoint import fleet_pages, serving
from wayfare.field.runtime.fairness import FairSubscriptions, Rates, TokenBucket
from wayfare.field.runtime.gathering import ByPlan, Gathering, OnArrival
from wayfare.field.runtime.housekeeping import Housekeeping, HousekeepingOptions
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.lease import LASTS_S, Lease, holder_of
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.loop import future_of, run_loop
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import Mark, Part, parse
from wayfare.field.runtime.page import live_page, token_of
from wayfare.field.runtime.parts import PASSING
from wayfare.field.runtime.rules import Limits
from wayfare.field.runtime.seals import ServerEnd
from wayfare.field.runtime.status import FleetStatus, status_of
from wayfare.field.runtime.stream import DELIVERY, MAX_BATCH, ensure_stream
from wayfare.field.runtime.work import Work
from wayfare.records.lock import RunLock

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_log = logging.getLogger("wayfare.field")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    state: Path  # the folder of its ledger and model
    url: str | None = None
    by_plan: bool = False
    limits: Limits = field(default_factory=Limits)
    membership: Membership = field(default_factory=Membership)  # without a plan
    save_every_s: float = 30.0  # the model file, which only shortens a start
    housekeeping: HousekeepingOptions = field(default_factory=HousekeepingOptions)
    stored_bytes: int = 256 << 20  # of all devices' chunks in the broker
    stored_chunks: int = 64  # per device
    rates: Rates = field(default_factory=Rates)
    lease_s: float = LASTS_S  # another server takes over after this time
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no metrics
    page: tuple[str, int] | None = None  # host and port of the live page alone; it is also beside the metrics


def open_intake(bundle: Bundle, work: Work, options: ServerOptions) -> Intake:
    """The server holds no data: only a plan needs the simulated world."""
    by_samples = work.scenario.server.weighting == "samples"
    membership = None if options.by_plan else replace(options.membership, by_samples=by_samples)
    ledger = Ledger(
        options.state,
        work.initial_model,
        layout=work.layout,
        aggregation=work.aggregation(membership),
        identity=work.server_identity(bundle.fleet_id, bundle.name),
        names=bundle.devices,
        limits=replace(options.limits, largest_value=MAX_WHOLE) if work.link.sums else options.limits,
    )
    gathering: Gathering = ByPlan(work.world.meets, work.scenario.rounds) if options.by_plan else OnArrival()
    return Intake(ledger, gathering, work.layout, work.agreement)


def run_server(bundle: Bundle, work: Work, options: ServerOptions, stop: threading.Event) -> None:
    with RunLock(options.state, inside=True):
        intake = open_intake(bundle, work, options)
        try:
            run_loop(_run(bundle, intake, options, stop))
        finally:
            intake.close()


async def _run(bundle: Bundle, intake: Intake, options: ServerOptions, stop: threading.Event) -> None:
    server: MobileEdgeServer | None = None
    began_s = time.monotonic()

    async def status() -> FleetStatus:
        if server is not None:
            return await server.status(bundle.fleet)
        away = partial(status_of, intake, fleet=bundle.fleet, heard_at_s={}, began_s=began_s)
        return await asyncio.to_thread(away, broker_in_reach=False, leads=False)

    async with AsyncExitStack() as ending:
        # Before the first contact with the broker, which may be hours away.
        page = live_page(token_of(options.state), status)
        if options.metrics_port is not None:
            pages = serving({**fleet_pages(status), **page}, host=options.metrics_host, port=options.metrics_port)
            port = await ending.enter_async_context(pages)
            _log.info("metrics", extra={"url": f"http://{options.metrics_host}:{port}/metrics"})
        if options.page is not None:
            await ending.enter_async_context(serving(page, host=options.page[0], port=options.page[1]))
        client = await connect_unless(stop, bundle, url=options.url)
        if client is not None:
            ending.push_async_callback(client.close)
            server = MobileEdgeServer(client, intake, options)
            await server.run(stop)


class MobileEdgeServer:
    """Reads chunks from the stream, answers devices, and recreates the stream if it is lost."""

    def __init__(self, client: FieldClient, intake: Intake, options: ServerOptions) -> None:
        self._client, self._intake, self._options = client, intake, options
        self._heard_at_s: dict[int, float] = {}
        self._seals = ServerEnd(client.seals, options.state)
        self._lease = Lease(client, holder_of(options.state), options.lease_s)
        pace = options.rates.bytes_per_s, options.rates.bytes_burst
        self._sent, self._received = (defaultdict[int, TokenBucket](lambda: TokenBucket(*pace)) for _ in range(2))
        self._house = Housekeeping(intake.ledger, self._in_thread, options.housekeeping)
        self._began_s = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._parts = ThreadPoolExecutor(1, thread_name_prefix="parts")
        # Bounded by the consumer's limit of unacknowledged messages.
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._newcomer = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._applied: asyncio.Future[None] = loop.create_future()
        self._failed: asyncio.Future[None] = loop.create_future()

    async def run(self, stop: threading.Event) -> None:
        """Serve whenever this server holds the lease."""
        leasing, stopping = asyncio.ensure_future(self._lease.keep()), future_of(stop)
        try:
            while not stopping.done():
                if self._lease.is_held:
                    await self._lead(stopping, leasing)
                await asyncio.wait((leasing, stopping), timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                if leasing.done():
                    leasing.result()
        finally:
            stopping.cancel()
            leasing.cancel()
            await asyncio.gather(leasing, return_exceptions=True)
            await self._lease.release()
            self._thread.shutdown()
            self._parts.shutdown()

    async def _lead(self, stopping: asyncio.Future[None], leasing: asyncio.Future[None]) -> None:
        """Record and answer until the server stops or the lease is lost."""
        _log.info("this server answers the devices", extra={"version": self._intake.ledger.version})
        delivery = await self._client.subscribe(DELIVERY, cb=self._arrived.put)
        work = (self._keep_stream(), self._record(), self._save(), self._hear(), self._house.run())
        tasks: list[asyncio.Future[None]] = [asyncio.ensure_future(task) for task in work]
        try:
            # Out of reach of the broker nobody can answer, and the lease is asked for again.
            while not stopping.done() and (self._lease.is_held or not self._client.is_connected):
                watched, left_s = (*tasks, leasing, stopping, self._failed), max(self._lease.left_s, 0.1)
                done, _ = await asyncio.wait(watched, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(*PASSING):
                await delivery.unsubscribe()

    async def status(self, fleet: str) -> FleetStatus:
        return await self._in_thread(
            lambda: status_of(
                self._intake,
                fleet=fleet,
                heard_at_s=self._heard_at_s,
                began_s=self._began_s,
                judged=self._house.judged,
                best=self._house.best,
                broker_in_reach=self._client.is_connected,
                leads=self._lease.is_held,
            )
        )

    async def _keep_stream(self) -> None:
        """Keep the stream and its consumer alive, also after the broker lost its store."""
        while True:
            try:
                await self._client.wait_connected()
                await ensure_stream(self._client, self._options.stored_chunks, self._options.stored_bytes)
            except RefusedError:
                raise
            except PASSING as error:
                _log.info("the stream does not exist yet", extra={"reason": str(error) or repr(error)})
                await asyncio.sleep(0.1)
                continue
            lost = asyncio.ensure_future(self._client.disconnected.wait())
            await asyncio.wait((lost,), timeout=2.0)
            lost.cancel()

    async def _record(self) -> None:
        """Record and apply chunks from the stream, then ack them, then publish their marks."""
        while True:
            messages = [await self._arrived.get()]
            while len(messages) < MAX_BATCH and not self._arrived.empty():
                messages.append(self._arrived.get_nowait())
            if not self._lease.is_held:
                # The broker gives them to the server that leads.
                continue
            batch: list[tuple[int, bytes]] = []
            marks: list[tuple[int, Mark]] = []
            for message in messages:
                number = self._number_of(message.subject)
                if number is None or (data := self._opened(message)) is None:
                    continue
                if self._received[number].take(len(data)):
                    batch.append((number, data))
                else:
                    marks.append((number, Mark(update=0, refused="too many bytes per second; try again later")))
            marks += await self._in_thread(partial(self._intake.chunks, batch))
            self._wake()
            try:
                for message in messages:
                    await message.ack()
                for number, mark in marks:
                    name = self._intake.names[number]
                    await self._client.publish(f"applied.{name}", self._seals.mark(name, mark.packed()))
                await self._client.flush()
            except PASSING as error:
                # The broker redelivers the chunks, and the server finds them recorded.
                _log.info("confirmations were not delivered", extra={"reason": str(error) or repr(error)})

    async def _hear(self) -> None:
        """Answer the questions of all devices, within their rates."""
        kinds = {"ask": self._on_ask, "finish": self._on_finish, "part": self._on_part}
        fair = FairSubscriptions(self._client, self._options.rates)
        answering = {kind: self._answering(answer) for kind, answer in kinds.items()}
        # A device that nobody hears says so. All devices share this subscription: a flood of it keeps newcomers out.
        await fair.hear("*", "hello", self._on_hello)
        extending = asyncio.ensure_future(fair.keep_credit())
        try:
            while True:
                for name in self._intake.names:
                    for kind, on_message in answering.items():
                        await fair.hear(name, kind, on_message)
                self._newcomer.clear()
                news = asyncio.ensure_future(self._newcomer.wait())
                await asyncio.wait((extending, news), return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if extending.done():
                    extending.result()
        finally:
            extending.cancel()
            with contextlib.suppress(*PASSING):
                await fair.close()

    async def _save(self) -> None:
        """Save the model file periodically; it shortens the next start."""
        while True:
            await asyncio.sleep(self._options.save_every_s)
            began_s = time.monotonic()
            await self._in_thread(self._intake.ledger.save_model)
            # Spend at most a fiftieth of the time on it.
            await asyncio.sleep(50 * (time.monotonic() - began_s))

    async def _on_hello(self, message: Msg) -> None:
        if self._number_of(message.subject) is not None:
            self._newcomer.set()

    async def _on_ask(self, device: int, data: bytes) -> bytes | None:
        standing = await self._in_thread(lambda: self._intake.ask(device, data))
        return standing.packed() if standing else None

    async def _on_finish(self, device: int, data: bytes) -> bytes:
        finish, version = partial(self._intake.finish, device, data), self._intake.ledger.version
        applied = self._applied
        manifest = await self._in_thread(finish)
        if self._intake.ledger.version != version or manifest.state == "ready":
            self._wake()
        if manifest.state == "wait":
            # Wait for the other devices of the round: one late answer is better than many early ones.
            await asyncio.wait((applied,), timeout=0.5)
            manifest = await self._in_thread(finish)
        return manifest.packed()

    async def _on_part(self, device: int, data: bytes) -> Buffer:
        try:
            size_bytes = parse(Part, data).size_bytes
        except WireError:
            size_bytes = 0
        pace = self._sent[device]
        while not pace.take(size_bytes):
            await asyncio.sleep(pace.wait_s(size_bytes))
        # Not behind the ledger's work: a contact is too short to wait for the chunks of others.
        return await asyncio.get_running_loop().run_in_executor(self._parts, self._intake.part, device, data)

    def _answering(self, answer: Callable[[int, bytes], Awaitable[Buffer | None]]) -> Callable[[Msg], Awaitable[None]]:
        """A subscription that answers each request in its own task, so that a waiting one does not block others."""
        underway: set[asyncio.Task[None]] = set()

        async def one(number: int, message: Msg, data: bytes) -> None:
            reply = await answer(number, data)
            if reply is not None:
                try:
                    name = self._intake.names[number]
                    sealed = self._seals.answer(name, kind_of(message.subject), message.data, reply)
                    await self._client.publish(message.reply, sealed)
                except PASSING as error:
                    _log.info("an answer was not delivered", extra={"reason": str(error) or repr(error)})

        def ended(task: asyncio.Task[None]) -> None:
            underway.discard(task)
            if not task.cancelled() and (error := task.exception()) and not self._failed.done():
                # No message of a device causes this; a full disk does.
                self._failed.set_exception(error)

        async def on_message(message: Msg) -> None:
            number = self._number_of(message.subject)
            if number is None or not message.reply or not self._lease.is_held:
                return
            if (data := self._opened(message)) is None:
                return
            task = asyncio.create_task(one(number, message, data))
            underway.add(task)
            task.add_done_callback(ended)

        return on_message

    def _opened(self, message: Msg) -> bytes | None:
        """The content of a message if its device sealed it. A forged one is not charged to the device."""
        try:
            return self._seals.question(device_of(message.subject), kind_of(message.subject), message.data)
        except WireError as error:
            extra = {"device": device_of(message.subject), "reason": str(error)}
            _log.warning("message without a valid seal", extra=extra)
            return None

    def _number_of(self, subject: str) -> int | None:
        """The number of the device that sent a message, guaranteed by the broker."""
        try:
            number = self._intake.ledger.roster.number_of(device_of(subject))
        except InputError:
            return None
        self._heard_at_s[number] = time.monotonic()
        return number

    def _wake(self) -> None:
        self._applied.set_result(None)
        self._applied = asyncio.get_running_loop().create_future()

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
