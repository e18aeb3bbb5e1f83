"""Connections over emulated air, with the real broker: losses are noticed, and everything comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest

from tests.field.brokers import finish
from wayfare.errors import LinkLostError
from wayfare.field.fleet import Fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.proxy import Link
from wayfare.field.runtime.connect import FieldClient, LinkSettings, connect

pytestmark = pytest.mark.system


@asynccontextmanager
async def over_the_air(fleet: Fleet, broker: Broker) -> AsyncIterator[tuple[FieldClient, FieldClient, Link]]:
    """The server on the broker's own machine, a device behind a link that is open, and the link."""
    link = await Link(broker.port).start()
    link.open()
    server = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)
    device = await connect(load_bundle(fleet.device_folder("drone")), url=link.url, wait_s=10)
    try:
        yield server, device, link
    finally:
        await device.close()
        await server.close()
        await link.stop()


async def answer(server: FieldClient) -> None:
    async def echo(message: Any) -> None:
        await message.respond(message.data)

    await server.subscribe("up.*.ask", cb=echo)
    await server.confirm()


@pytest.mark.parametrize("silently", [False, True], ids=["with a reset", "silently"])
def test_a_loss_ends_what_waits_and_the_next_contact_goes_on(fleet: Fleet, broker: Broker, silently: bool) -> None:
    async def scene() -> None:
        async with over_the_air(fleet, broker) as (server, device, link):
            await answer(server)
            for number in range(3):
                assert (await device.request("up.drone.ask", b"%d" % number, 10)).data == b"%d" % number
                link.close(silently=silently)
                with pytest.raises(LinkLostError):
                    await device.request("up.drone.ask", b"lost", 60)
                await device.disconnected.wait()
                with pytest.raises(LinkLostError, match="the broker is out of reach"):
                    await device.request("up.drone.ask", b"too early", 60)
                link.open()
                await device.wait_connected()
            assert (await device.request("up.drone.ask", b"back", 10)).data == b"back"
            assert device.stats["reconnects"] >= 3

    finish(scene())


def test_a_busy_link_is_not_taken_for_a_lost_one(fleet: Fleet, broker: Broker) -> None:
    async def scene() -> None:
        async with over_the_air(fleet, broker) as (server, device, link):
            # A second and a half of messages on the air in front of every answer to a ping.
            link.open(downlink_bps=1e6)
            heard = await device.subscribe("down.drone.>")
            await device.confirm()
            for _ in range(15):
                await server.publish("down.drone.model", bytes(12_500))
            for _ in range(15):
                await heard.next_msg(10)
            assert device.stats["reconnects"] == 0
            assert link.connections == 1

    finish(scene())


def test_it_comes_back_after_cuts_at_any_moment(fleet: Fleet, broker: Broker) -> None:
    chance = np.random.default_rng(0)

    async def scene() -> None:
        async with over_the_air(fleet, broker) as (server, device, link):
            await answer(server)
            for _ in range(60):
                link.close(silently=bool(chance.random() < 0.1))
                await asyncio.sleep(0.001)
                # The handshake takes some 4 kB, so at this rate many of these cuts fall into it.
                link.open(uplink_bps=2e6, downlink_bps=2e6)
                await asyncio.sleep(float(chance.uniform(0.0, 0.15)))
            link.close()
            await asyncio.sleep(0.1)
            link.open()
            for _ in range(100):
                try:
                    await device.wait_connected()
                    assert (await device.request("up.drone.ask", b"alive", 5)).data == b"alive"
                    return
                except LinkLostError:
                    continue
            raise AssertionError("the device never came back")

    finish(scene())


def test_a_first_contact_is_waited_for_as_long_as_asked(fleet: Fleet, broker: Broker) -> None:
    bundle = load_bundle(fleet.device_folder("drone"))

    async def scene() -> None:
        link = await Link(broker.port).start()
        with pytest.raises(LinkLostError, match=r"out of reach for 0\.3 s"):
            await connect(bundle, url=link.url, wait_s=0.3)
        link.close(silently=True)
        with pytest.raises(LinkLostError, match=r"out of reach for 0\.3 s"):
            await connect(bundle, url=link.url, wait_s=0.3, settings=LinkSettings(connect_s=0.1))
        coming = asyncio.ensure_future(connect(bundle, url=link.url))
        await asyncio.sleep(0.1)
        assert not coming.done()
        link.open()
        device = await coming
        await device.confirm()
        await device.close()
        await link.stop()

    finish(scene())


@pytest.mark.parametrize("after_s", [0.06, 0.09, 0.12, 0.3])
def test_who_leaves_while_it_is_coming_back_leaves(fleet: Fleet, broker: Broker, after_s: float) -> None:
    async def scene() -> None:
        link = await Link(broker.port).start()
        link.open()
        settings = LinkSettings(farewell_s=0.2)
        device = await connect(load_bundle(fleet.device_folder("drone")), url=link.url, settings=settings)
        link.close()
        # So slowly that the handshake has only begun.
        link.open(uplink_bps=2e4)
        await asyncio.sleep(after_s)
        await asyncio.wait_for(device.close(), 10)
        assert device.is_closed
        await link.stop()

    finish(scene())


def test_who_leaves_does_not_go_on_trying_to_come_back(fleet: Fleet, broker: Broker) -> None:
    async def coming_back() -> None:
        # Twice a cancellation is lost, as it is when a timeout comes at the same instant.
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def scene() -> None:
        device = await connect(load_bundle(fleet.device_folder("drone")), url=broker.url, wait_s=10)
        device._reconnection_task = asyncio.ensure_future(coming_back())
        await asyncio.wait_for(device.close(), 10)
        assert device._reconnection_task.done()

    finish(scene())


def test_a_first_contact_that_ends_in_the_handshake_is_not_the_last(fleet: Fleet, broker: Broker) -> None:
    async def scene() -> None:
        link = await Link(broker.port).start()
        link.open(uplink_bps=4e3)
        settings = LinkSettings(connect_s=0.2)
        coming = asyncio.ensure_future(
            connect(load_bundle(fleet.device_folder("drone")), url=link.url, settings=settings)
        )
        while link.connections < 3:
            await asyncio.sleep(0.01)
        assert not coming.done()
        link.open()
        device = await coming
        await device.confirm()
        await device.close()
        await link.stop()

    finish(scene())


def test_a_link_lost_just_as_a_handshake_ends_comes_back(
    fleet: Fleet, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 0

    async def scene() -> None:
        async with over_the_air(fleet, broker) as (_, device, link):
            loop = asyncio.get_running_loop()
            start_tls = loop.start_tls

            async def lost(*arguments: Any, **settings: Any) -> None:
                nonlocal losses
                losses += 1
                transport = await start_tls(*arguments, **settings)
                assert transport is not None
                transport.abort()
                if losses == 2:
                    monkeypatch.undo()

            # The loop returns no transport if the connection was lost before it could.
            monkeypatch.setattr(type(loop), "start_tls", lambda _, *arguments, **settings: lost(*arguments, **settings))
            link.close()
            await device.disconnected.wait()
            link.open()
            await asyncio.wait_for(device.wait_connected(), 10)
            await device.confirm()

    finish(scene())
    assert losses == 2


def test_a_broker_that_was_killed_is_met_again(fleet: Fleet, broker: Broker) -> None:
    async def scene() -> None:
        async with over_the_air(fleet, broker) as (server, device, _):
            await answer(server)
            broker.kill()
            await device.disconnected.wait()
            await server.disconnected.wait()
            broker.start()
            await server.wait_connected()
            await server.confirm()
            await device.wait_connected()
            assert (await device.request("up.drone.ask", b"again", 10)).data == b"again"

    finish(scene())


def test_the_answer_to_an_abandoned_flush_does_not_end_the_connection(fleet: Fleet, broker: Broker) -> None:
    async def scene() -> None:
        async with over_the_air(fleet, broker) as (server, device, _):
            await answer(server)
            abandoned = asyncio.ensure_future(device.flush())
            while not device._pongs:
                await asyncio.sleep(0)
            abandoned.cancel()
            await device.confirm()
            assert (await device.request("up.drone.ask", b"alive", 5)).data == b"alive"
            assert device.stats["reconnects"] == 0

    finish(scene())
