"""A connection to the broker: encrypted or not at all, quick to notice a loss, clear about refusals."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client, Server
from nats.aio.msg import Msg

from wayfare.errors import FieldError, InputError, LinkLostError, RefusedError
from wayfare.field.fleet import Bundle
from wayfare.field.fleet.subjects import inbox_prefix

_log = logging.getLogger("wayfare.field")
_DENIED = re.compile(r'permissions violation for \w+ to "([^"]*)"', re.IGNORECASE)
_PLAINTEXT = "the broker does not encrypt, so no key is shown to it"
_KEPT_REFUSALS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How a connection behaves when the other side comes and goes. Contacts last seconds, so everything is short."""

    retry_s: float = 0.05
    connect_s: float = 1.0
    ping_s: float = 0.5
    silence_s: float = 0.5  # without a word, while a ping is unanswered: the link is lost
    farewell_s: float = 1.0
    longest_retry_s: float = 30.0  # where the broker was reached and refused: asking more often would not help


class FieldClient(Client):
    """A NATS client that fails at once, and says why, where the plain one waits for a timeout.

    A request whose publish is denied raises RefusedError; one whose link is lost, LinkLostError. The same holds for
    JetStream, which publishes by requests.
    """

    def __init__(self, settings: LinkSettings) -> None:
        super().__init__()
        self.connected = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.refusals: deque[str] = deque(maxlen=_KEPT_REFUSALS)  # all that was ever denied, the newest last
        self._settings = settings
        # By the subject asked, in small letters: the client hands on what the broker says in no others.
        self._waiting: dict[str, set[asyncio.Future[FieldError]]] = {}
        self._unconfirmed: list[str] = []
        self._refused_in_a_row = 0
        self._watch: asyncio.Task[None] | None = None

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Ask and wait for the answer; a denial or a lost link ends the wait."""
        self._check_link()
        failed: asyncio.Future[FieldError] = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(super().request(subject, payload, timeout, old_style, headers))
        self._waiting.setdefault(asked := subject.lower(), set()).add(failed)
        try:
            await asyncio.wait((answer, failed), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise failed.result()
        finally:
            answer.cancel()
            self._waiting[asked].discard(failed)
            if not self._waiting[asked]:
                del self._waiting[asked]

    async def confirm(self, timeout_s: float = 5.0) -> None:
        """Wait until the broker has seen everything said so far; raise if it denied a publish or a subscription."""
        self._check_link()
        try:
            await asyncio.wait_for(self.flush(), timeout_s)
        except (TimeoutError, nats.errors.Error) as error:
            raise LinkLostError(f"the broker does not answer: {error or 'timeout'}") from None
        if self._unconfirmed:
            denied, self._unconfirmed = self._unconfirmed, []
            raise RefusedError("; ".join(denied))

    async def wait_connected(self) -> None:
        """Wait until the broker is in reach; raise if it threw us out for good."""
        if not self.is_closed:
            await self.connected.wait()
        self._check_link()

    async def close(self) -> None:
        """Leave in order, but do not wait long for somebody who is out of reach."""
        if self._watch is not None:
            self._watch.cancel()
        leaving = asyncio.ensure_future(super().close())
        try:
            await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
            if not leaving.done():
                self._let_go()
                await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
        finally:
            # A line that was given up in the middle of its handshake never says that it is closed.
            cut = leaving.cancel()
        await _cancelled(self._reconnection_task)
        if cut:
            await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
            await self._on_closed()
        else:
            leaving.result()

    def _let_go(self) -> None:
        """Drop the socket: closing an encrypted line in order waits half a minute for an answer."""
        writer = getattr(self._transport, "_io_writer", None)
        # In the middle of a TLS handshake the writer has no transport.
        if writer is not None and writer.transport is not None:
            writer.transport.abort()

    async def _watch_silence(self) -> None:
        """Notice a silent loss. The client's own rule counts pings alone, and those queue behind a busy link."""
        loop = asyncio.get_running_loop()
        heard, heard_s = -1, loop.time()
        while not self.is_closed:
            await asyncio.sleep(self._settings.silence_s / 10)
            messages = self.stats["in_msgs"]
            if messages != heard or not self._pings_outstanding or not self.is_connected:
                heard, heard_s = messages, loop.time()
            elif loop.time() - heard_s > self._settings.silence_s:
                heard_s = loop.time()
                self._let_go()

    def _check_link(self) -> None:
        if self.is_closed:
            raise RefusedError(f"the connection is closed: {self._why_closed()}")
        if not self.connected.is_set():
            raise LinkLostError("the broker is out of reach")

    def _why_closed(self) -> str:
        return refusal_of(self.last_error) or str(self.last_error or "by this side")

    async def _on_error(self, error: Exception) -> None:
        if not self.is_connected:
            # The client would wait for the end of a line whose handshake failed, which never comes.
            self._let_go()
            self._transport = None
        if found := _DENIED.search(str(error)):
            reason = f"the broker denied {self.options['name']} {str(error).removeprefix('nats: ')}"
            _log.warning(reason)
            self.refusals.append(reason)
            if (denied := found[1].lower()) in self._waiting:
                self._fail(RefusedError(reason), denied)
            else:
                self._unconfirmed.append(reason)
        elif refusal := refusal_of(error):
            self._refused_in_a_row += 1
            self.refusals.append(refusal)
            _log.warning("%s: %s", self.options["name"], refusal)
        else:
            _log.debug("%s: %s: %s", self.options["name"], type(error).__name__, error)

    async def _on_connected(self) -> None:
        self._refused_in_a_row = 0
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_silence())
        self.disconnected.clear()
        self.connected.set()

    async def _on_disconnected(self) -> None:
        self.connected.clear()
        self.disconnected.set()
        self._fail(LinkLostError("the link to the broker was lost"))

    async def _on_closed(self) -> None:
        await self._on_disconnected()
        # Whoever waits for the next contact is let go, and finds the client closed.
        self.connected.set()

    def _fail(self, error: FieldError, subject: str | None = None) -> None:
        for asked, waiting in self._waiting.items():
            for failed in waiting if subject in (None, asked) else ():
                if not failed.done():
                    failed.set_result(error)

    def _next_try(self, servers: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
        """At once and for ever where nobody is there; ever later where somebody was and refused."""
        slower = self._settings.retry_s * 2.0 ** min(self._refused_in_a_row, 30)
        return None, min(slower, self._settings.longest_retry_s)

    def _connect_command(self) -> bytes:
        # The plain client shows its key without encryption wherever the other side says that it does not encrypt.
        if not self._server_info.get("tls_required"):
            raise nats.errors.Error(_PLAINTEXT)
        return super()._connect_command()


async def connect(
    bundle: Bundle,
    *,
    url: str | None = None,
    wait_s: float | None = None,
    settings: LinkSettings | None = None,
) -> FieldClient:
    """A connection with a bundle's keys, kept up from now on: after a loss it comes back by itself.

    Waits for the first contact, for ever if ``wait_s`` is None (LinkLostError otherwise). Raises RefusedError at once
    where the broker is reached and refuses, or is not of this fleet. ``url`` leads elsewhere than the bundle says,
    through a proxy for instance; the certificate must still be that of the bundle's host.
    """
    settings = settings or LinkSettings()
    client = FieldClient(settings)

    async def on_error(error: Exception) -> None:
        await client._on_error(error)
        # What is raised here ends the first attempts, which would go on for ever; later ones should.
        if not trying.done() and (reason := refusal_of(error)):
            raise RefusedError(f"{bundle.name} at {url or bundle.url}: {reason}")

    trying = asyncio.ensure_future(
        client.connect(
            servers=[url or bundle.url],
            name=bundle.name,
            inbox_prefix=inbox_prefix(bundle.name),
            nkeys_seed_str=(bundle.folder / "user.seed").read_text(encoding="ascii").strip(),
            tls=_tls(bundle),
            tls_hostname=urlsplit(bundle.url).hostname,
            error_cb=on_error,
            disconnected_cb=client._on_disconnected,
            reconnected_cb=client._on_connected,
            closed_cb=client._on_closed,
            reconnect_to_server_handler=client._next_try,
            # The client declares whole seconds and takes any.
            reconnect_time_wait=settings.retry_s,  # type: ignore[arg-type]
            connect_timeout=settings.connect_s,  # type: ignore[arg-type]
            ping_interval=settings.ping_s,  # type: ignore[arg-type]
            max_outstanding_pings=1_000_000,  # silence is watched for by FieldClient
            max_reconnect_attempts=-1,
        )
    )
    try:
        await asyncio.wait((trying,), timeout=wait_s)
        if not trying.done():
            raise LinkLostError(f"{url or bundle.url}: out of reach for {wait_s:g} s ({client.last_error})")
        trying.result()
        await client._on_connected()
    except BaseException:
        await _cancelled(trying)
        await client.close()
        raise
    return client


async def _cancelled(task: asyncio.Task[Any] | None) -> None:
    """End a task. Once is not always enough: a cancellation can be lost to a timeout of the same instant."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)


def refusal_of(error: Exception | None) -> str | None:
    """What an error says if it is a refusal that trying again does not mend, else None."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not one of this fleet ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "").upper():
        return f"the broker does not accept this certificate ({(error.reason or '').lower().replace('_', ' ')})"
    if isinstance(error, nats.errors.AuthorizationError) or "authorization violation" in text.lower():
        return "the broker does not know this key (authorization violation)"
    if _PLAINTEXT in text:
        return _PLAINTEXT
    return None


def _tls(bundle: Bundle) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=bundle.folder / "ca.pem")
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(bundle.folder / "client.pem", bundle.folder / "client.key")
    except (ssl.SSLError, OSError) as error:
        raise InputError(f"{bundle.folder}: certificates cannot be used: {error}") from None
    return context
