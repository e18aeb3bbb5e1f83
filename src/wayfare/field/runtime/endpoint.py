"""A small HTTP server for the status of a server or a device.

``/healthz`` answers 200 while the process works, and ``/readyz`` while it can also do its work: it reaches the broker,
and of two servers it is the one that answers. ``/metrics`` is for Prometheus, ``/status`` for programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from wayfare.errors import FieldError, InputError
from wayfare.field.runtime.metrics import CONTENT_TYPE, Metric, render
from wayfare.field.runtime.status import FleetStatus, metrics_of

DEFAULT_PORT = 9464
_TIMEOUT_S, _MAX_BYTES, _MAX_CALLERS = 5.0, 8192, 32


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    kind: str = "text/plain"
    code: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Awaitable[Page]]]


def fleet_pages(status: Callable[[], Awaitable[FleetStatus]]) -> Pages:
    """The pages of a server."""

    async def whole() -> Page:
        return Page((await status()).to_json() + "\n", "application/json")

    async def metrics() -> Page:
        return metrics_page(metrics_of(await status()))

    async def health() -> Page:
        await status()
        return Page("ok\n")

    async def readiness() -> Page:
        found = await status()
        if not found.broker_in_reach:
            return unavailable("the broker is out of reach")
        return Page("ok\n") if found.leads else unavailable("another server holds the lease")

    return {"/metrics": metrics, "/status": whole, "/healthz": health, "/readyz": readiness}


def metrics_page(metrics: Sequence[Metric]) -> Page:
    return Page(render(metrics), CONTENT_TYPE)


def unavailable(reason: str) -> Page:
    return Page(reason + "\n", code=HTTPStatus.SERVICE_UNAVAILABLE)


@contextlib.asynccontextmanager
async def serving(pages: Pages, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> AsyncIterator[int]:
    """Serve while the block runs, and yield the port. Port 0 lets the system choose."""
    callers = asyncio.Semaphore(_MAX_CALLERS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Slow, endless or aborted requests must not block the server.
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with callers, asyncio.timeout(_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(request, pages))
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


async def _response(request: bytes, pages: Pages) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if method not in ("GET", "HEAD"):
        return _encoded(Page("only GET\n", code=HTTPStatus.METHOD_NOT_ALLOWED))
    if path in pages:
        page = _encoded(await pages[path]())
    else:
        # Addresses below the first level contain a token.
        public = [name for name in pages if name.count("/") == 1]
        page = _encoded(Page(f"try {', '.join(public)}\n", code=HTTPStatus.NOT_FOUND))
    return page if method == "GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _encoded(page: Page) -> bytes:
    body = page.text.encode()
    head = (
        f"HTTP/1.1 {page.code.value} {page.code.phrase}\r\nContent-Type: {page.kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    )
    return head.encode() + body
