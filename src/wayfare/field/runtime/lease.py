"""A lease against two servers: of those that start from one bundle, one answers, and the others wait.

The lease is the last message of a stream that forgets it after a few seconds. The holder renews it; every write names
the message that it replaces, so two servers cannot both succeed. A server that restarts from the same folder on the
same host takes its own lease over at once: the lock of the folder makes sure that its former process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from wayfare.errors import RefusedError
from wayfare.field.runtime.parts import PASSING

if TYPE_CHECKING:
    from wayfare.field.runtime.connect import FieldClient

_log = logging.getLogger("wayfare.field")
_STREAM, _SUBJECT = "WAYFARE_LEASE", "lease.mes"
# Seconds after which a lease that is not renewed ends.
LASTS_S = 5.0


def holder_of(state: Path) -> str:
    """The name of a server: its host and its folder."""
    found = state.stat()
    return f"{socket.gethostname()}:{state.resolve()}:{found.st_dev}:{found.st_ino}"


class Lease:
    def __init__(self, client: FieldClient, holder: str, lasts_s: float = LASTS_S) -> None:
        self._client, self._holder, self._lasts_s = client, holder, lasts_s
        self._renewed_s = -float("inf")
        self._sequence: int | None = None  # of this server's message, as far as it knows

    @property
    def left_s(self) -> float:
        """How long this server may answer. It stops before another one can start."""
        return self._renewed_s + 0.8 * self._lasts_s - time.monotonic()

    @property
    def is_held(self) -> bool:
        return self.left_s > 0

    async def keep(self) -> None:
        """Acquire the lease and renew it, until cancelled."""
        while True:
            try:
                await self._client.wait_connected()
                other = await self._renew()
                if other is not None:
                    _log.warning("another server holds the lease; waiting", extra={"holder": other})
            except RefusedError:
                raise
            except PASSING as error:
                _log.info("the lease was not renewed", extra={"reason": str(error) or repr(error)})
            await asyncio.sleep(self._lasts_s / 5)

    async def release(self) -> None:
        """Give the lease back, so that another server need not wait."""
        if self.is_held and self._client.is_connected:
            self._renewed_s = -float("inf")
            with contextlib.suppress(*PASSING):
                await self._client.jsm().purge_stream(_STREAM)

    async def _renew(self) -> str | None:
        """Write the lease if it is free or ours; otherwise return its holder."""
        asked_s, known = time.monotonic(), self._sequence
        if known is None or await self._write(known) is not None:
            try:
                last = await self._client.jetstream().get_last_msg(_STREAM, _SUBJECT)
                holder, sequence = json.loads(last.data or b"{}").get("holder"), last.seq or 0
            except NotFoundError:
                holder, sequence = None, 0
            if holder not in (None, self._holder):
                self._renewed_s = -float("inf")
                return str(holder)
            await self._ensure_stream()
            if (reason := await self._write(sequence)) is not None:
                # Another server was faster.
                return f"unknown ({reason})"
        self._renewed_s = asked_s
        return None

    async def _write(self, sequence: int) -> str | None:
        """Replace the message with this number, or none if it is 0; return the reason if another one is there."""
        self._sequence = None
        headers = {"Nats-Expected-Last-Subject-Sequence": str(sequence)}
        words = json.dumps({"holder": self._holder}).encode()
        try:
            self._sequence = (await self._client.jetstream().publish(_SUBJECT, words, headers=headers)).seq
        except APIError as error:
            return error.description or "refused"
        return None

    async def _ensure_stream(self) -> None:
        """Create the stream, or give an existing one this server's lifetime of the lease."""
        manager = self._client.jsm()
        wanted = StreamConfig(
            name=_STREAM,
            subjects=[_SUBJECT],
            storage=StorageType.FILE,
            discard=DiscardPolicy.OLD,
            max_msgs_per_subject=1,
            max_age=self._lasts_s,
        )
        try:
            found = await manager.stream_info(_STREAM)
        except NotFoundError:
            await manager.add_stream(wanted)
        else:
            if found.config.max_age != self._lasts_s:
                await manager.update_stream(wanted)
