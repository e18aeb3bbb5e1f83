"""A connection to the broker: always encrypted, quick to detect a lost link, and with clear refusals."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import ParseResult, urlsplit

import nats.errors
from nats.aio.client import Client, Server, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from wayfare.arrays import Buffer
from wayfare.errors import FieldError, InputError, LinkLostError, RefusedError
from wayfare.field.fleet import Bundle
from wayfare.field.fleet.subjects import inbox_prefix
from wayfare.field.runtime.seals import DeviceEnd, Seals

_log = logging.getLogger("wayfare.field")
_DENIED = re.compile(r'permissions violation for \w+ to "([^"]*)"', re.IGNORECASE)
_PLAINTEXT = "the broker does not encrypt; the client sends it no key"
_KEPT_REFUSALS = 100
_LARGE_BYTES = 16 << 10
# Tenths of a second without a broker before the log says so.
_PATIENT_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Timeouts of a connection. Contacts last seconds, so all of them are short."""

    retry_s: float = 0.05
    connect_s: float = 1.0
    ping_s: float = 0.5
    silence_s: float = 0.5  # without data while a ping is unanswered: the link is lost
    farewell_s: float = 1.0
    longest_retry_s: float = 30.0  # after a refusal by the broker, when faster retries do not help


class _TlsTransport(TcpTransport):
    """A transport that notices a link lost just as the TLS handshake ends.

    The event loop then returns no transport, and the plain class makes a writer that can neither write nor be deleted.
    """

    def __bool__(self) -> bool:
        # The client replaces a transport that is false.
        return True

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        assert self._io_writer is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        host = uri if isinstance(uri, str) else uri.hostname
        handshake = loop.start_tls(self._io_writer.transport, protocol, ssl_context, server_hostname=host)
        transport = await asyncio.wait_for(handshake, connect_timeout)
        if transport is None:
            raise ConnectionResetError("the link was lost at the end of the TLS handshake")
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class FieldClient(Client):
    """A NATS client that fails at once with a reason, where the plain client waits for a timeout.

    A request whose publish is denied raises RefusedError; a lost link raises LinkLostError. The same holds for
    JetStream, which publishes by requests.
    """

    def __init__(self, settings: LinkSettings, seals: Seals) -> None:
        super().__init__()
        self.seals = seals
        self.connected = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.refusals: deque[str] = deque(maxlen=_KEPT_REFUSALS)  # denials, the newest last
        self._settings = settings
        # By subject in lowercase: the client lowercases the broker's messages.
        self._waiting: dict[str, set[asyncio.Future[FieldError]]] = {}
        self._unconfirmed: list[str] = []
        self._refused_in_a_row = 0
        self._next_look: asyncio.TimerHandle | None = None  # for silence

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Send a request and wait for the answer; a denial or a lost link ends the wait."""
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

    async def publish(
        self, subject: str, payload: Buffer = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        # The plain client's type says bytes.
        await super().publish(subject, cast(bytes, payload), reply, headers)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        """Publish without the two copies of a large payload that the plain client makes."""
        if headers is not None or payload_size < _LARGE_BYTES:
            await super()._send_publish(subject, reply, bytes(payload), payload_size, headers)
            return
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        command = f"PUB {subject} {reply} {payload_size}\r\n".encode()
        self._pending += [command, payload]
        self._pending_data_size += len(command) + payload_size
        await self._send_command(b"\r\n")
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def device_end(self, name: str) -> DeviceEnd:
        return DeviceEnd(self.seals, name)

    async def confirm(self, timeout_s: float = 5.0) -> None:
        """Wait until the broker has processed everything so far; raise if it denied a publish or a subscription."""
        self._check_link()
        try:
            await asyncio.wait_for(self.flush(), timeout_s)
        except (TimeoutError, nats.errors.Error) as error:
            raise LinkLostError(f"the broker does not answer: {error or 'timeout'}") from None
        if self._unconfirmed:
            denied, self._unconfirmed = self._unconfirmed, []
            raise RefusedError("; ".join(denied))

    async def wait_connected(self) -> None:
        """Wait until the broker is in reach; raise if it closed the connection for good."""
        if not self.is_closed:
            await self.connected.wait()
        self._check_link()

    async def close(self) -> None:
        """Close the connection, without waiting long for a broker out of reach."""
        if self._next_look is not None:
            self._next_look.cancel()
        leaving = asyncio.ensure_future(super().close())
        try:
            await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
            if not leaving.done():
                self._drop_socket()
                await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
        finally:
            # A connection abandoned during its handshake never reports that it is closed.
            cut = leaving.cancel()
        await _cancelled(self._reconnection_task)
        if cut:
            await asyncio.wait((leaving,), timeout=self._settings.farewell_s)
            await self._on_closed()
        else:
            leaving.result()

    async def _connect_to_server(self, s: Srv) -> None:
        self._transport = self._transport or _TlsTransport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_connect_init(self) -> None:
        """Shake hands. At an error that it does not expect, the plain client would stop reconnecting for good."""
        try:
            await super()._process_connect_init()
        except (OSError, nats.errors.Error, TimeoutError):
            raise
        except Exception as error:  # such as a line that the end of the contact cut
            raise nats.errors.Error(f"the handshake failed: {error}") from error

    def _drop_socket(self) -> None:
        """Drop the socket: an orderly TLS shutdown waits half a minute for an answer."""
        writer = getattr(self._transport, "_io_writer", None)
        # During a TLS handshake the writer has no transport.
        if writer is not None and writer.transport is not None:
            writer.transport.abort()

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        await super()._send_ping(future)
        # With a future it belongs to a flush, and the client does not count it.
        if future is None and self._next_look is None:
            self._look_for_silence(-1, 0.0)

    def _look_for_silence(self, heard: int, heard_s: float) -> None:
        """Detect a silent loss while a ping is unanswered.

        The client itself counts only pings, which queue behind a busy link.
        """
        self._next_look = None
        if not self._pings_outstanding or not self.is_connected:
            return
        loop, messages = asyncio.get_running_loop(), self.stats["in_msgs"]
        if messages != heard:
            heard, heard_s = messages, loop.time()
        elif loop.time() - heard_s > self._settings.silence_s:
            self._drop_socket()
            return
        self._next_look = loop.call_later(self._settings.silence_s / 10, self._look_for_silence, heard, heard_s)

    def _check_link(self) -> None:
        if self.is_closed:
            raise RefusedError(f"the connection is closed: {self._why_closed()}")
        if not self.connected.is_set():
            raise LinkLostError("the broker is out of reach")

    def _why_closed(self) -> str:
        return refusal_of(self.last_error) or str(self.last_error or "by this side")

    async def _on_error(self, error: Exception) -> None:
        if not self.is_connected:
            # After a failed handshake the client would wait forever for the end of the connection.
            self._drop_socket()
            self._transport = None
        if found := _DENIED.search(str(error)):
            reason = f"the broker denied {self.options['name']}: {str(error).removeprefix('nats: ')}"
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
        self.disconnected.clear()
        self.connected.set()

    async def _on_disconnected(self) -> None:
        self.connected.clear()
        self.disconnected.set()
        self._fail(LinkLostError("the link to the broker was lost"))

    async def _on_closed(self) -> None:
        await self._on_disconnected()
        # Wake up waiters, which then find the client closed.
        self.connected.set()

    def _fail(self, error: FieldError, subject: str | None = None) -> None:
        for asked, waiting in self._waiting.items():
            for failed in waiting if subject in (None, asked) else ():
                if not failed.done():
                    failed.set_result(error)

    def _next_try(self, servers: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
        """Retry at once and forever if there is no answer; with growing delays after a refusal."""
        slower = self._settings.retry_s * 2.0 ** min(self._refused_in_a_row, 30)
        return None, min(slower, self._settings.longest_retry_s)

    async def _process_pong(self) -> None:
        """A cancelled flush still awaits its pong. The plain client (2.16) then stops reading, and stays connected."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def _connect_command(self) -> bytes:
        # The plain client would send its key unencrypted if the other side does not offer encryption.
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
    """Connect with a bundle's keys. After a loss the connection reconnects by itself.

    It waits for the first contact, forever if ``wait_s`` is None; otherwise it raises LinkLostError. It raises
    RefusedError at once if the broker refuses, or is not of this fleet. ``url`` overrides the bundle's address, for
    example for a proxy; the certificate must still be that of the bundle's host.
    """
    settings = settings or LinkSettings()
    client = FieldClient(settings, Seals(bundle.folder))

    async def on_error(error: Exception) -> None:
        await client._on_error(error)
        # Raising ends the first attempts, which would retry forever. Later reconnections should retry forever.
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
            # The client's type says whole seconds, but it accepts fractions.
            reconnect_time_wait=settings.retry_s,  # type: ignore[arg-type]
            connect_timeout=settings.connect_s,  # type: ignore[arg-type]
            ping_interval=settings.ping_s,  # type: ignore[arg-type]
            max_outstanding_pings=1_000_000,  # FieldClient detects silence itself
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


async def connect_unless(stop: threading.Event, bundle: Bundle, *, url: str | None = None) -> FieldClient | None:
    """Connect as soon as the broker is in reach; None if ``stop`` is set before."""
    connecting = asyncio.ensure_future(connect(bundle, url=url))
    waited = 0
    try:
        while not connecting.done() and not stop.is_set():
            if waited == _PATIENT_LOOKS:
                _log.info("waiting for the broker", extra={"url": url or bundle.url})
            waited += 1
            await asyncio.wait((connecting,), timeout=0.1)
        return connecting.result() if connecting.done() else None
    finally:
        if not connecting.done():
            await _cancelled(connecting)


async def _cancelled(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task. Once is not always enough: a simultaneous timeout can swallow a cancellation."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)


def refusal_of(error: Exception | None) -> str | None:
    """The reason if an error is a permanent refusal, otherwise None."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not from this fleet ({error.verify_message})"
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
        raise InputError(f"{bundle.folder}: invalid certificates: {error}") from None
    return context
