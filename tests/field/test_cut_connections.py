"""Connections that end after any number of bytes, with the real broker: the device always comes back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.field.brokers import finish
from wayfare.errors import LinkLostError
from wayfare.field.fleet import Fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import FieldClient, connect

pytestmark = pytest.mark.system

TO_BROKER, FROM_BROKER = 0, 1
# The first bytes from the broker are its INFO line. The others end in the TLS handshake, at its end, or after it.
CUTS = [
    *((FROM_BROKER, after) for after in (1, 3, 4, 5, 9, *range(40, 2500, 97))),
    *((TO_BROKER, after) for after in (1, 5, *range(40, 1800, 97))),
]


@dataclass(slots=True)
class Cutter:
    """A relay to the broker that cuts the next connection after some bytes in one direction."""

    port: int
    cut: tuple[int, int] | None = None
    cuts: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.port)
        (direction, after), self.cut = self.cut or (None, 0), None
        self.writers = [writer, to_broker]
        with suppress(ConnectionError):
            await asyncio.gather(
                self.copy(reader, to_broker, after if direction == TO_BROKER else None),
                self.copy(from_broker, writer, after if direction == FROM_BROKER else None),
            )

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        while data := await reader.read(4096):
            if left is not None and len(data) >= left:
                writer.write(data[:left])
                self.cuts += 1
                break
            left = None if left is None else left - len(data)
            writer.write(data)
        self.drop()

    def drop(self) -> None:
        for writer in self.writers:
            writer.close()


async def comes_back(device: FieldClient) -> None:
    """Until the broker answers; a cut after the handshake is a second loss."""
    while True:
        await device.wait_connected()
        with suppress(LinkLostError):
            return await device.confirm(0.5)
        await asyncio.sleep(0.02)


def test_a_contact_may_end_after_any_byte(fleet: Fleet, broker: Broker) -> None:
    relay = Cutter(broker.port)

    async def scene() -> None:
        async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as server:
            url = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            bundle = load_bundle(fleet.device_folder("drone"))
            # Also the first one.
            relay.cut = (FROM_BROKER, 4)
            device = await connect(bundle, url=url, wait_s=10)
            for cut in CUTS:
                relay.cut = cut
                device.disconnected.clear()
                relay.drop()
                await asyncio.wait_for(device.disconnected.wait(), 10)
                await asyncio.wait_for(comes_back(device), 10)
            await device.close()

    finish(scene())
    assert relay.cuts > len(CUTS) // 2
