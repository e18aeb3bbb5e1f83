"""The exchanger of a device: in a contact it delivers the open update and downloads the model.

It does not wait for the trainer. The package docstring explains the steps. The link or the power may fail after any
step; the next contact asks the server for its state and resumes from the answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import nats.errors

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.device import coded_pieces, contact, payload
from wayfare.errors import FieldError, RefusedError
from wayfare.field.runtime.begun import BegunDownload
from wayfare.field.runtime.current_model import CurrentModel
from wayfare.field.runtime.guide import Guide, Occasion
from wayfare.field.runtime.messages import Agreement, Ask, Finish, Manifest, Mark, Released, Standing, parse
from wayfare.field.runtime.model_encoding import unpacked, unpacked_state
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.parts import PASSING, PartPuller
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.windowed import windowed
from wayfare.methods.privacy import privacy_report

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from wayfare.field.runtime.connect import FieldClient

_log = logging.getLogger("wayfare.field")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    answer_s: float = 2.0
    mark_s: float = 2.0  # send a chunk again if it was acked but not recorded for this long
    idle_s: float = 0.01
    again_s: float = 0.05  # after a failure; twice as long after each further one
    longest_again_s: float = 2.0
    refused_s: float = 2.0
    window: int = 3  # chunks on the way to the broker
    part_window: int = 8  # requests for parts; those that wait cost no air
    download_s: float = 3600.0  # after this time a begun download gives way to a newer version

    def after(self, failures: int) -> float:
        """The pause after some failures in a row, in seconds."""
        return min(self.again_s * 2.0 ** min(failures - 1, 30), self.longest_again_s)


class _StopRequestedError(Exception):
    """The device must stop; it resumes an open update at its next start."""


class Exchanger:
    """Exchanges when the broker is in reach and the guide allows it."""

    def __init__(
        self,
        client: FieldClient,
        name: str,
        outbox: Outbox,
        guide: Guide,
        radio: Radio,
        layout: Layout,
        patience: Patience | None = None,
        current: CurrentModel | None = None,
        work: Agreement | None = None,
    ) -> None:
        """``current`` is the model for inference; None: the device does none. The server checks ``work``."""
        self._client, self._name, self._outbox, self._guide = client, name, outbox, guide
        self._radio, self._layout, self._patience = radio, layout, patience or Patience()
        self._end = client.device_end(name)
        self._current, self._work = current, work or {}
        self._recorded: set[tuple[int, int]] = set()
        self._refused: str | None = None
        self._news = asyncio.Event()
        self._begun = BegunDownload(outbox.file)
        self._puller = PartPuller(
            partial(self._request, "part"),
            layout,
            slow_window=self._patience.window,
            fast_window=self._patience.part_window,
        )
        self._attempt = time.time_ns()
        self._stop = threading.Event()

    async def run(self, stop: threading.Event) -> None:
        self._stop = stop
        await self._client.subscribe(f"applied.{self._name}", cb=self._on_mark)
        reached, failures = False, 0
        while not stop.is_set() and not self._guide.is_over(self._outbox.progress):
            if not self._client.connected.is_set():
                if reached:
                    self._guide.out_of_reach()
                reached = False
                await asyncio.sleep(self._patience.idle_s)
                continue
            if not reached:
                self._guide.in_reach()
                reached, failures = True, 0
                _log.info("the broker is in reach", extra={"device": self._name})
            try:
                if not await self._exchange():
                    await asyncio.sleep(self._patience.idle_s)
                failures = 0
            except _StopRequestedError:
                return
            except RefusedError as error:
                _log.error("rejected", extra={"device": self._name, "reason": str(error)})
                await asyncio.sleep(self._patience.refused_s)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                # The server is away, or it does not know this device yet. The broker does not tell a device with a new
                # account that nobody hears it.
                _log.info("no server answers", extra={"device": self._name})
                with suppress(*PASSING):
                    await self._client.publish(f"up.{self._name}.hello", b"")
                failures += 1
                await asyncio.sleep(self._patience.after(failures))
            except (*PASSING, WireError) as error:
                _log.info("exchange interrupted", extra={"device": self._name, "reason": f"{error}" or repr(error)})
                failures += 1
                await asyncio.sleep(self._patience.after(failures))

    async def _exchange(self) -> bool:
        """Start or resume an exchange and complete it; False if none is due."""
        progress = self._outbox.progress
        resumes = progress.cut_round > progress.finished_round and self._guide.resumes(progress)
        occasion = None if resumes else self._guide.occasion(progress, self._outbox.state)
        if (not resumes and (occasion is None or not self._outbox.may_exchange)) or self._radio.daily.is_used_up:
            return False
        # A begun download continues beside the upload, which uses the other direction of the link.
        continuing = asyncio.ensure_future(self._continue_download())
        installing = asyncio.ensure_future(self._install())
        try:
            standing = await self._settle_open_update(seal=not resumes)
            if occasion is not None and standing.wait_s > 0:
                _log.info("no upload is left today", extra={"device": self._name, "wait_s": round(standing.wait_s)})
                self._guide.wait(standing.wait_s)
                return True
            if occasion is not None and standing.outdated:
                await asyncio.to_thread(self._outbox.start_over, occasion.round)
            elif occasion is not None:
                await asyncio.to_thread(self._cut, occasion, standing.next_update)
            number = await self._deliver()
            released = await self._finish(number, continuing)
            self._guide.exchanged()
            if self._current is not None and self._current.want(released):
                await _cancelled(installing)
                installing = asyncio.ensure_future(self._install())
            await installing
        finally:
            await _cancelled(continuing)
            await _cancelled(installing)
            await asyncio.to_thread(self._begun.save)
        return True

    async def _install(self) -> None:
        """Download the released version and use it for inference; it has time until a newer one is released."""
        if self._current is None:
            return
        try:
            if await self._current.install(self._puller):
                _log.info("released version installed", extra={"version": self._current.running})
                report = Ask(version=self._outbox.progress.version, running=self._current.running)
                await self._request("ask", report.packed())
        except (*PASSING, WireError) as error:
            _log.info("released version incomplete", extra={"device": self._name, "reason": str(error) or repr(error)})

    async def _settle_open_update(self, *, seal: bool) -> Standing:
        """Ask which chunks of the open update are recorded; send the others again, or return them to the memory."""
        opened = self._outbox.open_update()
        number = opened.number if opened else None
        progress, is_private = self._outbox.progress, self._radio.terms.method.privacy is not None
        asked = Ask(
            update=number,
            seal=seal and opened is not None,
            fresh=progress.last_update == 0,
            version=progress.version,
            running=None if self._current is None else self._current.running,
            # Noise covers neither the number of samples nor the loss on them.
            samples=None if is_private else self._guide.samples(),
            loss=None if is_private else self._guide.loss(),
            work=self._work,
        )
        standing = parse(Standing, await self._request("ask", asked.packed()))
        if standing.refused is not None:
            raise RefusedError(standing.refused)
        if number is not None:
            if standing.sealed:
                await asyncio.to_thread(self._outbox.take_back, number, standing.recorded)
            else:
                await asyncio.to_thread(self._outbox.settle, number, standing.recorded)
        return standing

    def _cut(self, occasion: Occasion, next_update: int) -> None:
        """Decide as in the simulator, and put the chunks into the outbox."""
        outbox = self._outbox
        with outbox.holding():
            state, terms = self._radio.in_period(outbox.state, occasion.round, outbox.progress.settings)
            sending = contact(state, outbox.local, occasion, terms, occasion.lasts_s)
            # No payload: nothing to send, or an incomplete upload; `sent` distinguishes them.
            sent = payload(sending, outbox.local, terms.method) or sending.sent
            # Whole models are sent with exact values.
            coded = coded_pieces(sending) if terms.method.server.takes == "updates" else ()
            outbox.cut(
                sending.state,
                sent,
                round_=occasion.round,
                next_update=next_update,
                chunk_bytes=occasion.chunk_bytes,
                coded=coded,
                cut_short=sending.cut,
                added=sending.offer.added,
            )
        privacy = terms.method.privacy
        if privacy is not None and sending.state.releases >= privacy.max_releases():
            _log.warning("max_epsilon is reached; the device contributes nothing new", extra={"device": self._name})
        self._radio.set_power_watts(sending.upload.power_watts)

    async def _deliver(self) -> int | None:
        """Send the open update until all of it is recorded; return its number, if there is one."""
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
                # A rejected chunk would be rejected again: seal the update and cut a new one.
                await self._settle_open_update(seal=True)
                raise RefusedError(reason)
            recorded = [chunk for number, chunk in self._recorded if number == opened.number]
            bits += sum(8 * len(waiting[chunk]) for chunk in recorded if chunk in waiting)
            if await asyncio.to_thread(self._outbox.settle, opened.number, recorded):
                break
            # Acked without a mark: either the mark was lost, or the chunk with the broker's store.
            await self._settle_open_update(seal=False)
        self._recorded.clear()
        self._guide.measured(bits, time.monotonic() - began_s)
        return opened.number

    async def _push(self, number: int, waiting: dict[int, bytes]) -> None:
        """Publish chunks, a few at a time, the most important first. The broker's ack only moves the window."""

        async def publish(chunk: int) -> None:
            # A new id for every attempt: the broker may remember the ids of lost messages.
            headers = {"Nats-Msg-Id": f"{self._name}.{number}.{chunk}.{self._attempt}"}
            answer = await self._request("chunk", waiting[chunk], headers)
            if b'"error"' in answer:
                raise FieldError(f"the broker rejects chunks of this device for now: {answer[:200]!r}")

        await windowed(publish, waiting, self._patience.window)

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

    async def _finish(self, number: int | None, continuing: asyncio.Future[None] | None = None) -> Released | None:
        """Report that everything is delivered, and download the model. ``continuing`` may be doing so already.

        Returns the version that the server has released to this device.
        """
        progress = self._outbox.progress
        while True:
            self._check_stop()
            asked = Finish(
                round=progress.cut_round,
                update=number,
                have_version=progress.version,
                take=progress.takes_model,
                cut_short=progress.cut_short,
                begun=self._begun.as_message(),
                **privacy_report(self._radio.terms.method, self._outbox.state.releases),
            )
            manifest = parse(Manifest, await self._request("finish", asked.packed()))
            if manifest.state == "refused":
                raise RefusedError(f"the server rejected the end of the exchange: {manifest.reason}")
            if manifest.state == "ready":
                break
            await asyncio.sleep(self._patience.idle_s)
        if not progress.takes_model:
            await asyncio.to_thread(self._outbox.finish, progress.cut_round)
            return manifest.released
        if continuing is not None:
            # Otherwise the server offers another version, which takes fewer bytes.
            await (continuing if manifest == self._begun.manifest else _cancelled(continuing))
        await self._puller.pull(self._begun, manifest)
        data = self._begun.data()
        base = self._outbox.model if manifest.base_version is not None else None
        try:
            if manifest.base_version not in (None, progress.version):
                raise WireError(f"base_version = {manifest.base_version}: this device has version {progress.version}")
            body = data[: manifest.size_bytes]
            model = await asyncio.to_thread(unpacked, body, self._layout, base=base, digest=manifest.digest)
            like = self._outbox.state.local_state
            handed = unpacked_state(data[manifest.size_bytes :], manifest.handed_digest, like)
        except WireError:
            self._begun.clear()
            if base is not None:
                await asyncio.to_thread(self._outbox.forget_version)
            raise
        settings = {} if manifest.settings is None else manifest.settings.model_dump(exclude_none=True)
        await asyncio.to_thread(self._outbox.receive, model, manifest.version, progress.cut_round, handed, settings)
        self._begun.clear()
        return manifest.released

    async def _continue_download(self) -> None:
        """Pull what is missing of the begun download, unless it is too old."""
        begun, age_s = self._begun, time.time() - self._begun.began_s
        if begun.manifest is None or not 0 <= age_s < self._patience.download_s:
            begun.clear()
            return
        try:
            await self._puller.pull(begun, begun.manifest)
        except WireError as error:
            # The upload is not affected, and the server then offers another version.
            _log.info("download starts again", extra={"device": self._name, "reason": str(error)})

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StopRequestedError

    async def _request(self, kind: str, data: bytes, headers: dict[str, Any] | None = None) -> bytes:
        sealed, daily = self._end.sealed(kind, data), self._radio.daily
        daily.check()
        if kind == "part":
            # A download takes many contacts, if need be; it resumes after the next start.
            self._check_stop()
        answer = await self._client.request(
            f"up.{self._name}.{kind}", sealed, timeout=self._patience.answer_s, headers=headers
        )
        daily.add(len(sealed) + len(answer.data))
        return self._end.answer(kind, sealed, answer.data)

    async def _on_mark(self, message: Msg) -> None:
        try:
            mark = parse(Mark, self._end.mark(message.data))
        except WireError as error:
            _log.warning("invalid mark", extra={"device": self._name, "reason": str(error)})
            return
        if mark.refused is not None:
            self._refused = mark.refused
        self._recorded.update((mark.update, chunk) for chunk in mark.recorded)
        self._news.set()


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
