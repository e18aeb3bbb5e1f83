"""A small HTTP server for a fleet's status: ``/metrics`` for Prometheus, ``/status`` for programs, ``/healthz``."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from wayfare.errors import FieldError, InputError
from wayfare.field.runtime.metrics import CONTENT_TYPE, render
from wayfare.field.runtime.status import FleetStatus, metrics_of

DEFAULT_PORT = 9464
_TIMEOUT_S, _MAX_BYTES, _MAX_CALLERS = 5.0, 8192, 32


@contextlib.asynccontextmanager
async def serving(
    status: Callable[[], Awaitable[FleetStatus]], *, host: str = "127.0.0.1", port: int = DEFAULT_PORT
) -> AsyncIterator[int]:
    """Serve while the block runs, and yield the port. Port 0 lets the system choose."""
    callers = asyncio.Semaphore(_MAX_CALLERS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Slow, endless or aborted requests must not block the server.
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with callers, asyncio.timeout(_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(request, status))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=_MAX_BYTES)
    except OSError as error:
        raise FieldError(f"cannot serve metrics at {host}:{port}: {error.strerror}") from None
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def fetch_status(address: str) -> FleetStatus:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in address:
        raise InputError(f"address = {address!r}: must be HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
    try:
        with urllib.request.urlopen(f"http://{address}/status", timeout=_TIMEOUT_S) as response:
            return FleetStatus.from_json(response.read().decode())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise FieldError(f"{address}: no server answers ({reason}); is the fleet's server running there?") from None


async def _response(request: bytes, status: Callable[[], Awaitable[FleetStatus]]) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if method not in ("GET", "HEAD"):
        return _page(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", "only GET\n")
    if path == "/metrics":
        page = _page(HTTPStatus.OK, CONTENT_TYPE, render(metrics_of(await status())))
    elif path == "/status":
        page = _page(HTTPStatus.OK, "application/json", (await status()).to_json() + "\n")
    elif path == "/healthz":
        well = (await status()).broker_in_reach
        words = "ok\n" if well else "the broker is out of reach\n"
        page = _page(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", words)
    else:
        page = _page(HTTPStatus.NOT_FOUND, "text/plain", "try /metrics, /status or /healthz\n")
    return page if method == "GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _page(code: HTTPStatus, kind: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {code.value} {code.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    )
    return head.encode() + body
