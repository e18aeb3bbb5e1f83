"""The exchanger of a device: in a contact it delivers what is promised and takes the model, and waits for no trainer.

The steps and their reasons are in the docstring of the package. Every step may be the last one before the link or the
power fails; the next contact begins with a question and goes on from the answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import nats.errors

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.device import Terms, contact, payload
from wayfare.errors import FieldError, RefusedError
from wayfare.field.runtime.downloads import unpacked, unpacked_state
from wayfare.field.runtime.guide import Guide, Occasion
from wayfare.field.runtime.messages import Ask, Finish, Manifest, Mark, Part, Standing, parse
from wayfare.field.runtime.outbox import Outbox

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from wayfare.field.runtime.connect import FieldClient

_log = logging.getLogger("wayfare.field")
_Job = TypeVar("_Job")
_LEAST_PART_BYTES, _FIRST_PART_BYTES, _MOST_PART_BYTES = 1 << 10, 16 << 10, 256 << 10
# What shows that the other side cannot be heard just now; the next try begins with a question.
PASSING = (nats.errors.Error, FieldError, TimeoutError, ConnectionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    answer_s: float = 2.0
    mark_s: float = 2.0  # acked and not recorded for so long: it goes again
    idle_s: float = 0.01
    again_s: float = 0.05
    refused_s: float = 2.0
    window: int = 3


def no_radio(power_watts: float) -> None:
    """The hook where there is no radio whose power could be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Radio:
    """The method and the terms it decides by, and the hook by which its decision reaches a radio."""

    terms: Terms
    set_power_watts: Callable[[float], None] = no_radio


class _ToldToStopError(Exception):
    """The device is to end; what is open goes on when it begins again."""


class Exchanger:
    """Exchanges whenever the broker is in reach and the guide says so."""

    def __init__(
        self,
        client: FieldClient,
        name: str,
        outbox: Outbox,
        guide: Guide,
        radio: Radio,
        layout: Layout,
        patience: Patience | None = None,
    ) -> None:
        self._client, self._name, self._outbox, self._guide = client, name, outbox, guide
        self._radio, self._layout, self._patience = radio, layout, patience or Patience()
        self._recorded: set[tuple[int, int]] = set()
        self._refused: str | None = None
        self._news = asyncio.Event()
        self._parts: tuple[tuple[int, int | None, str, str], dict[int, bytes]] | None = None
        self._part_bytes = _FIRST_PART_BYTES
        # A value and a place for every entry, and a header: no download of this model is larger.
        self._most_bytes = 8 * (layout.parameters + layout.statistics) + 4096
        self._attempt = time.time_ns()
        self._stop = threading.Event()

    async def run(self, stop: threading.Event) -> None:
        self._stop = stop
        await self._client.subscribe(f"applied.{self._name}", cb=self._on_mark)
        reached = False
        while not stop.is_set() and not self._guide.is_over(self._outbox.progress):
            if not self._client.connected.is_set():
                if reached:
                    self._guide.out_of_reach()
                reached = False
                await asyncio.sleep(self._patience.idle_s)
                continue
            if not reached:
                self._guide.in_reach()
                reached = True
            try:
                if not await self._exchange():
                    await asyncio.sleep(self._patience.idle_s)
            except _ToldToStopError:
                return
            except RefusedError as error:
                _log.error("refused", extra={"device": self._name, "reason": str(error)})
                await asyncio.sleep(self._patience.refused_s)
            except (*PASSING, WireError) as error:
                _log.info("exchange broke off", extra={"device": self._name, "reason": f"{error}" or repr(error)})
                await asyncio.sleep(self._patience.again_s)

    async def _exchange(self) -> bool:
        """One exchange from where it stands to its end; False when it is not the time for one."""
        progress = self._outbox.progress
        resumes = progress.cut_round > progress.finished_round and self._guide.resumes(progress)
        occasion = None if resumes else self._guide.occasion(progress, self._outbox.state)
        if not resumes and occasion is None:
            return False
        standing = await self._settle_what_is_open(seal=not resumes)
        if occasion is not None:
            await asyncio.to_thread(self._cut, occasion, standing.next_update)
        number = await self._deliver()
        await self._finish(number)
        self._guide.exchanged()
        return True

    async def _settle_what_is_open(self, *, seal: bool) -> Standing:
        """Ask what is recorded of the open update; what is not goes again, or back into the memory."""
        opened = self._outbox.open_update()
        number = opened.number if opened else None
        fresh = self._outbox.progress.last_update == 0
        asked = Ask(update=number, seal=seal and opened is not None, fresh=fresh)
        standing = parse(Standing, await self._request("ask", asked.packed()))
        if number is not None:
            if standing.sealed:
                await asyncio.to_thread(self._outbox.take_back, number, standing.recorded)
            else:
                await asyncio.to_thread(self._outbox.settle, number, standing.recorded)
        return standing

    def _cut(self, occasion: Occasion, next_update: int) -> None:
        """Decide as the simulator does, and promise it."""
        outbox, terms = self._outbox, self._radio.terms
        with outbox.holding():
            sending = contact(outbox.state, outbox.local, occasion, terms, occasion.lasts_s)
            # Without a payload there was nothing to send, or the upload did not complete: `sent` says which.
            sent = payload(sending, outbox.local, terms.method) or sending.sent
            outbox.cut(
                sending.state,
                sent,
                round_=occasion.round,
                next_update=next_update,
                chunk_bytes=occasion.chunk_bytes,
                cut_short=sending.cut,
            )
        self._radio.set_power_watts(sending.upload.power_watts)

    async def _deliver(self) -> int | None:
        """Send what is promised until all of it is recorded; the number of the update, if there is one."""
        opened = self._outbox.open_update()
        if opened is None:
            progress = self._outbox.progress
            return progress.last_update or None
        self._refused, began_s, bits = None, time.monotonic(), 0
        while True:
            self._check_stop()
            waiting = dict(await asyncio.to_thread(self._outbox.pending, opened.number))
            if not waiting:
                break
            self._attempt += 1
            await self._push(opened.number, waiting)
            await self._marks(opened.number, set(waiting))
            if self._refused is not None:
                reason, self._refused = self._refused, None
                # What was refused once would be again: the server seals it, and a new update is cut.
                await self._settle_what_is_open(seal=True)
                raise RefusedError(reason)
            recorded = [chunk for number, chunk in self._recorded if number == opened.number]
            bits += sum(8 * len(waiting[chunk]) for chunk in recorded if chunk in waiting)
            if await asyncio.to_thread(self._outbox.settle, opened.number, recorded):
                break
            # Acked, and no mark: it may be recorded and the mark lost, or lost with the broker's store.
            await self._settle_what_is_open(seal=False)
        self._recorded.clear()
        self._guide.measured(bits, time.monotonic() - began_s)
        return opened.number

    async def _push(self, number: int, waiting: dict[int, bytes]) -> None:
        """Publish chunks, a few at a time, the most important first. The broker's ack only moves the window."""

        async def publish(chunk: int) -> None:
            # A new id for every attempt: the broker may remember ids of messages that it has lost.
            headers = {"Nats-Msg-Id": f"{self._name}.{number}.{chunk}.{self._attempt}"}
            answer = await self._request("chunk", waiting[chunk], headers)
            if b'"error"' in answer:
                raise FieldError(f"the broker keeps no more of this device's chunks for now: {answer[:200]!r}")

        await _windowed(publish, waiting, self._patience.window)

    async def _marks(self, number: int, chunks: set[int]) -> None:
        until_s = time.monotonic() + self._patience.mark_s
        while self._refused is None and not all((number, chunk) in self._recorded for chunk in chunks):
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._client.connected.is_set():
                return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), min(left_s, 0.2))
            except TimeoutError:
                continue

    async def _finish(self, number: int | None) -> None:
        """Say that all is delivered, and take the model."""
        progress = self._outbox.progress
        while True:
            self._check_stop()
            asked = Finish(
                round=progress.cut_round,
                update=number,
                have_version=progress.version,
                take=progress.takes_model,
                cut_short=progress.cut_short,
            )
            manifest = parse(Manifest, await self._request("finish", asked.packed()))
            if manifest.state == "refused":
                raise RefusedError(f"the server refused the end of an exchange: {manifest.reason}")
            if manifest.state == "ready":
                break
            await asyncio.sleep(self._patience.idle_s)
        if not progress.takes_model:
            await asyncio.to_thread(self._outbox.finish, progress.cut_round)
            return
        data = await self._pull(manifest)
        base = self._outbox.model if manifest.base_version is not None else None
        try:
            if manifest.base_version not in (None, progress.version):
                raise WireError(f"a delta on version {manifest.base_version}, here is {progress.version}")
            body = data[: manifest.size_bytes]
            model = await asyncio.to_thread(unpacked, body, self._layout, base=base, digest=manifest.digest)
            like = self._outbox.state.local_state
            handed = unpacked_state(data[manifest.size_bytes :], manifest.handed_digest, like)
        except WireError:
            self._parts = None
            if base is not None:
                await asyncio.to_thread(self._outbox.forget_version)
            raise
        await asyncio.to_thread(self._outbox.receive, model, manifest.version, progress.cut_round, handed)
        self._parts = None

    async def _pull(self, manifest: Manifest) -> bytes:
        """The bytes of a download, part by part; those that came before a cut are not asked for again."""
        most = max(manifest.size_bytes, manifest.handed_bytes)
        if most > self._most_bytes:
            raise WireError(f"a model of {most} bytes, ours has at most {self._most_bytes}")
        key = manifest.version, manifest.base_version, manifest.digest, manifest.handed_digest
        if self._parts is None or self._parts[0] != key:
            self._parts = key, {}
        parts = self._parts[1]

        async def pull(place: tuple[int, int]) -> None:
            offset, size_bytes = place
            asked = Part(
                version=manifest.version, base_version=manifest.base_version, offset=offset, size_bytes=size_bytes
            )
            began_s = time.monotonic()
            try:
                piece = await self._request("part", asked.packed())
            except PASSING:
                self._part_bytes = max(self._part_bytes // 4, _LEAST_PART_BYTES)
                raise
            if len(piece) != size_bytes:
                self._parts = None
                raise WireError("the server does not keep this model any more")
            parts[offset] = piece
            # Parts of about a tenth of a second: a cut costs little, and the way there and back little more.
            faster = time.monotonic() - began_s < 0.1
            self._part_bytes = min(self._part_bytes * 2, _MOST_PART_BYTES) if faster else self._part_bytes

        for hole in _holes(parts, manifest.size_bytes + manifest.handed_bytes):
            await _windowed(pull, self._places(*hole), self._patience.window)
        return b"".join(parts[offset] for offset in sorted(parts))

    def _places(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of a hole, of the size that is right when they are asked for."""
        while begin < end:
            size_bytes = min(self._part_bytes, end - begin)
            yield begin, size_bytes
            begin += size_bytes

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _ToldToStopError

    async def _request(self, kind: str, data: bytes, headers: dict[str, Any] | None = None) -> bytes:
        answer = await self._client.request(
            f"up.{self._name}.{kind}", data, timeout=self._patience.answer_s, headers=headers
        )
        return answer.data

    async def _on_mark(self, message: Msg) -> None:
        try:
            mark = parse(Mark, message.data)
        except WireError as error:
            _log.warning("a mark that is none", extra={"device": self._name, "reason": str(error)})
            return
        if mark.refused is not None:
            self._refused = mark.refused
        self._recorded.update((mark.update, chunk) for chunk in mark.recorded)
        self._news.set()


def _holes(parts: dict[int, bytes], total: int) -> list[tuple[int, int]]:
    """Where bytes are missing, as (begin, end)."""
    holes, at = [], 0
    for offset in sorted(parts):
        if offset > at:
            holes.append((at, offset))
        at = offset + len(parts[offset])
    return [*holes, (at, total)] if at < total else holes


async def _windowed(work: Callable[[_Job], Coroutine[Any, Any, None]], jobs: Iterable[_Job], window: int) -> None:
    """Do jobs in order, so many at a time; the first that fails ends them all."""
    room = asyncio.Semaphore(window)

    async def one(job: _Job) -> None:
        try:
            await work(job)
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as group:
            remaining = iter(jobs)
            while True:
                await room.acquire()
                try:
                    job = next(remaining)
                except StopIteration:
                    break
                group.create_task(one(job))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
