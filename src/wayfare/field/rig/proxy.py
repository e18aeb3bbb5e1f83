"""Emulated contacts: a proxy between a device and the broker that opens, closes and limits the rate."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from dataclasses import dataclass

from wayfare.errors import InputError

# The maximum airtime of a piece, so that a contact ends on time and not a buffer later.
_PIECE_S = 0.01
_LEAST_BYTES, _MOST_BYTES = 256, 1 << 16
# How much a late timer may catch up. More would let an idle link exceed its rate.
_SLACK_S = 0.02
# Small, because buffered bytes have left the device without using airtime.
_SOCKET_BYTES = 1 << 15


@dataclass(slots=True)
class Direction:
    """One direction of a link: bytes arrive after their airtime, which all connections share."""

    rate_bps: float = math.inf
    carried_bytes: int = 0
    _since_s: float = 0.0
    _free_at_s: float = 0.0

    def piece_bytes(self) -> int:
        if math.isinf(self.rate_bps):
            return _MOST_BYTES
        return min(max(int(self.rate_bps * _PIECE_S / 8), _LEAST_BYTES), _MOST_BYTES)

    def begin(self, rate_bps: float) -> None:
        """Start now; unused earlier airtime is lost."""
        self.rate_bps, self._since_s = rate_bps, asyncio.get_running_loop().time()

    async def carry(self, size_bytes: int) -> None:
        """Wait for the channel, then for the airtime of the bytes."""
        now_s = asyncio.get_running_loop().time()
        begin_s = max(self._free_at_s, now_s - _SLACK_S, self._since_s)
        self._free_at_s = begin_s + 8 * size_bytes / self.rate_bps
        if self._free_at_s > now_s:
            await asyncio.sleep(self._free_at_s - now_s)


class Link:
    """The link of one device to the broker, initially closed.

    A loud close resets connections and rejects new ones, as without a carrier. After a silent close nothing gets
    through and neither side is notified, as behind a hill.
    """

    def __init__(self, broker_port: int, broker_host: str = "127.0.0.1") -> None:
        self._broker = (broker_host, broker_port)
        self.up, self.down = Direction(), Direction()
        self.connections = 0  # established with the broker
        self.open_s = 0.0  # in all contacts that have ended
        self._opened_s = 0.0
        self._passable = asyncio.Event()
        self._silent = False
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> Link:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        listener.bind((host, port))
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_SOCKET_BYTES)
        return self

    @property
    def port(self) -> int:
        if self._server is None:
            raise InputError("the link has not been started")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._passable.is_set()

    def open(self, uplink_bps: float = math.inf, downlink_bps: float = math.inf) -> None:
        """Start a contact, or change its rates."""
        for field, rate_bps in (("uplink_bps", uplink_bps), ("downlink_bps", downlink_bps)):
            if not rate_bps > 0:
                raise InputError(f"{field} = {rate_bps!r}: must be above 0")
        self.up.begin(uplink_bps)
        self.down.begin(downlink_bps)
        self._silent = False
        if not self.is_open:
            self._opened_s = asyncio.get_running_loop().time()
        self._passable.set()

    def close(self, *, silently: bool = False) -> None:
        """End a contact; bytes in transit are lost."""
        if self.is_open:
            self.open_s += asyncio.get_running_loop().time() - self._opened_s
        self._passable.clear()
        self._silent = silently
        if not silently:
            self._cut()

    async def stop(self) -> None:
        self.close()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _cut(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def _accept(self, device_in: asyncio.StreamReader, device_out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        # A cut connection is a normal end of this task.
        with contextlib.suppress(asyncio.CancelledError, OSError):
            if self._passable.is_set() or self._silent:
                await self._passable.wait()
                await self._connected(device_in, device_out)
        device_out.transport.abort()
        self._pumps.discard(task)

    async def _connected(self, device_in: asyncio.StreamReader, device_out: asyncio.StreamWriter) -> None:
        broker_in, broker_out = await asyncio.open_connection(*self._broker, limit=_SOCKET_BYTES)
        self.connections += 1
        ways = [
            asyncio.ensure_future(self._pump(self.up, device_in, broker_out)),
            asyncio.ensure_future(self._pump(self.down, broker_in, device_out)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Do not wait here: a second cut must find nothing left to interrupt.
            broker_out.transport.abort()
            for way in ways:
                way.cancel()

    async def _pump(self, way: Direction, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(way.piece_bytes()):
                await self._passable.wait()
                await way.carry(len(piece))
                await self._passable.wait()
                target.write(piece)
                way.carried_bytes += len(piece)
                await target.drain()
