"""The emulated air: nothing gets through a closed link, and never more than its rate through an open one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from benchmarks.proxy_process import ProxyProcess

from tests.field.brokers import finish
from wayfare.contacts import ContactPlan
from wayfare.contacts.store import save_plan
from wayfare.errors import FieldError, InputError
from wayfare.field.rig.proxy import Link
from wayfare.field.rig.replay import replay
from wayfare.mobility import SERVER


class Sink:
    """A server that keeps what it hears and echoes it."""

    def __init__(self) -> None:
        self.heard = bytearray()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                self.heard += piece
                writer.write(piece)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Sink]]:
    sink = Sink()
    async with await asyncio.start_server(sink, "127.0.0.1", 0) as server:
        link = await Link(server.sockets[0].getsockname()[1]).start()
        try:
            yield link, sink
        finally:
            await link.stop()


async def call(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", link.port)


def test_a_closed_link_lets_nobody_through_and_an_open_one_carries_every_byte() -> None:
    payload = bytes(range(256)) * 2000

    async def scene() -> None:
        async with linked() as (link, sink):
            reader, writer = await call(link)
            writer.write(b"anybody?")
            assert await _end_of(reader) == b""
            writer.close()
            assert (sink.heard, link.connections) == (b"", 0)
            link.open()
            reader, writer = await call(link)
            writer.write(payload)
            assert await reader.readexactly(len(payload)) == payload
            assert (link.up.carried_bytes, link.down.carried_bytes) == (len(payload), len(payload))
            writer.close()

    finish(scene())


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_link_is_never_faster_than_its_rate_however_many_connections_share_it(way: str) -> None:
    async def scene() -> float:
        async with linked() as (link, _):
            link.open(**{f"{way}link_bps": 4e6})
            clock = asyncio.get_running_loop().time
            began_s, lines = clock(), [await call(link) for _ in range(3)]
            for _, writer in lines:
                writer.write(bytes(50_000))
            for reader, writer in lines:
                await reader.readexactly(50_000)
                writer.close()
            return clock() - began_s

    # 1.2 Mbit at 4 Mbit/s, less what a late timer may catch up.
    assert finish(scene()) >= 0.3 - 0.03


def test_a_cut_loses_what_is_on_the_air_and_tells_the_device() -> None:
    async def scene() -> None:
        async with linked() as (link, sink):
            link.open(uplink_bps=1e6)
            reader, writer = await call(link)
            writer.write(bytes(100_000))
            while not sink.heard:
                await asyncio.sleep(0.01)
            link.close()
            await _end_of(reader)
            heard = len(sink.heard)
            assert 0 < heard < 100_000
            assert not link.is_open
            await asyncio.sleep(0.1)
            assert len(sink.heard) == heard
            writer.close()

    finish(scene())


def test_a_silent_cut_tells_nobody_and_the_stream_goes_on_where_it_was() -> None:
    payload = bytes(range(250)) * 400

    async def scene() -> None:
        async with linked() as (link, sink):
            link.open(uplink_bps=2e6)
            reader, writer = await call(link)
            writer.write(payload)
            await reader.readexactly(1000)
            link.close(silently=True)
            await asyncio.sleep(0.05)
            heard = len(sink.heard)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(len(payload)), 0.2)
            assert len(sink.heard) == heard < len(payload)
            waiting, second = await call(link)
            second.write(b"who comes while it is closed waits")
            link.open()
            assert await waiting.readexactly(10) == b"who comes "
            while len(sink.heard) < len(payload):
                await asyncio.sleep(0.01)
            assert bytes(sink.heard).replace(b"who comes while it is closed waits", b"") == payload
            writer.close()
            second.close()

    finish(scene())


def plan_of(*contacts: tuple[int, float, float], devices: int = 2, duration_s: float = 40.0) -> ContactPlan:
    device, start_s, end_s = (np.array(column) for column in zip(*sorted(contacts), strict=True))
    return ContactPlan(
        devices=devices,
        duration_s=duration_s,
        device=device,
        peer=np.full(len(device), SERVER),
        start_s=start_s,
        end_s=end_s,
        distance_m=np.full(len(device), 10.0),
    )


def test_a_plan_opens_and_closes_links_in_its_order_and_at_its_rates() -> None:
    seen: list[tuple[int, bool, float]] = []

    async def scene() -> None:
        async with linked() as (first, _), linked() as (second, _):
            links = (first, second)
            await replay(
                plan_of((0, 1.0, 5.0), (0, 20.0, 30.0), (1, 3.0, 20.0), (1, 20.0, 25.0)),
                links,
                speed=200,
                uplink_bps=np.array([1e3, 2e3, 3e3, 4e3]),
                on_contact=lambda device, began: seen.append((device, began, links[device].up.rate_bps)),
            )
            assert not first.is_open
            assert not second.is_open

    finish(scene())
    assert [(device, began) for device, began, _ in seen] == [
        *((0, True), (1, True), (0, False), (1, False)),
        *((0, True), (1, True), (1, False), (0, False)),
    ]
    assert [rate for _, began, rate in seen if began] == [2e5, 6e5, 4e5, 8e5]


def test_a_plan_of_another_fleet_and_impossible_rates_are_refused() -> None:
    with pytest.raises(InputError, match="got 1, the plan has 2 devices"):
        finish(replay(plan_of((0, 1.0, 2.0)), [Link(1)]))
    with pytest.raises(InputError, match="speed = 0: must be above 0"):
        finish(replay(plan_of((0, 1.0, 2.0), devices=1), [Link(1)], speed=0))
    with pytest.raises(InputError, match="downlink_bps = -1: must be above 0"):
        Link(1).open(1e6, -1)


def test_links_live_in_a_process_of_their_own(tmp_path: Path) -> None:
    save_plan(plan_of((0, 0.0, 30.0), (1, 10.0, 20.0), duration_s=600.0), tmp_path / "plan.npz")
    save_plan(plan_of((0, 0.0, 30.0), devices=1), tmp_path / "other.npz")

    async def scene() -> None:
        sink = Sink()
        async with await asyncio.start_server(sink, "127.0.0.1", 0) as server:
            with ProxyProcess(server.sockets[0].getsockname()[1], 2) as links:
                links.open(1, uplink_bps=1e7)
                reader, writer = await asyncio.open_connection("127.0.0.1", links.ports[1])
                writer.write(b"x" * 1000)
                await reader.readexactly(1000)
                assert links.carried(1) == (1000, 1000, 0.0)
                links.close(1)
                assert 0 < links.carried(1)[2] < 60
                await _end_of(reader)
                writer.close()
                with pytest.raises(FieldError, match="uplink_bps = 0: must be above 0"):
                    links.open(0, uplink_bps=0)
                with pytest.raises(FieldError, match="got 2, the plan has 1 devices"):
                    links.replay(tmp_path / "other.npz")
                links.replay(tmp_path / "plan.npz", speed=10)
                reader, writer = await asyncio.open_connection("127.0.0.1", links.ports[0])
                writer.write(b"y")
                assert await reader.readexactly(1) == b"y"
                await _end_of(reader)
                writer.close()
            with pytest.raises((FieldError, ValueError)):
                links.open(0)

    finish(scene())


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the line ends, in whatever way it ends."""
    with contextlib.suppress(OSError):
        return await reader.read()
    return b""
