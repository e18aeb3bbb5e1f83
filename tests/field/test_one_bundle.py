"""One bundle in the wrong hands stops nobody else, with the real broker: hijacked replies, connections, floods."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.field.brokers import finish, needs_broker
from tests.field.parts import Told, train
from tests.field.test_exchange import Site
from wayfare.errors import LinkLostError
from wayfare.field.fleet import Fleet, create_fleet, load_bundle
from wayfare.field.fleet.broker_config import Limits
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import FieldClient, connect
from wayfare.field.runtime.fairness import Rates, TokenBucket
from wayfare.field.runtime.messages import Ask

pytestmark = pytest.mark.system


@pytest.fixture
def site(fleet: Fleet, broker: Broker, tmp_path: Path) -> Site:
    return Site(fleet, broker, tmp_path)


@asynccontextmanager
async def attacker(site: Site) -> AsyncIterator[FieldClient]:
    client = await connect(load_bundle(site.fleet.device_folder("bus-2")), url=site.broker.url, wait_s=10)
    try:
        yield client
    finally:
        await client.close()


def test_answers_to_one_device_never_count_as_messages_of_another(site: Site) -> None:
    async def story() -> None:
        async with site.server() as intake, attacker(site) as client:
            train(site.outbox, 1, 1)
            await site.device(Told())
            end = client.device_end("bus-2")
            for kind in ("ask", "chunk", "finish", "part"):
                for _ in range(30):
                    words = end.sealed(kind, b"anything")
                    await client.publish(f"up.bus-2.{kind}", words, reply="up.bus-1.chunk")
                    await client.publish(f"up.bus-2.{kind}", words, reply=f"up.bus-1.{kind}")
            await client.flush()
            train(site.outbox, 2, 2)
            await site.device(Told())
            assert intake.counts[0].refused == 0
            assert intake.counts[0].exchanges == 2
            assert intake.counts[1].refused > 0

    finish(story())
    site.check()


def test_a_bundle_cannot_take_all_connections_of_the_broker(tmp_path: Path) -> None:
    needs_broker()
    limits = Limits(connections=12, connections_per_device=3)
    fleet = create_fleet(tmp_path / "fleet", devices=["good", "bad"], limits=limits)

    async def story(broker: Broker) -> None:
        bad = load_bundle(fleet.device_folder("bad"))
        greedy = await asyncio.gather(
            *(connect(bad, url=broker.url, wait_s=1.0) for _ in range(12)), return_exceptions=True
        )
        clients = [one for one in greedy if isinstance(one, FieldClient)]
        assert len(clients) == 3
        assert all(isinstance(one, LinkLostError) for one in greedy if one not in clients)
        good = await connect(load_bundle(fleet.device_folder("good")), url=broker.url, wait_s=5)
        await good.confirm()
        for one in (good, *clients):
            await one.close()

    with Broker(fleet, port=0) as broker:
        finish(story(broker))


def test_a_flood_of_questions_costs_others_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with site.server() as intake, attacker(site) as client:
            answered: list[float] = []
            ask = type(intake).ask

            def counted(self: object, device: int, data: bytes) -> object:
                if device == 1:
                    answered.append(time.monotonic())
                return ask(self, device, data)  # type: ignore[arg-type]

            monkeypatch.setattr(type(intake), "ask", counted)
            stop = threading.Event()

            async def flood() -> None:
                question = client.device_end("bus-2").sealed("ask", Ask(update=1, seal=True).packed())
                while not stop.is_set():
                    for _ in range(500):
                        await client.publish("up.bus-2.ask", question, reply="_INBOX_bus-2.x")
                    await asyncio.sleep(0)

            began_s = time.monotonic()
            flooding = asyncio.ensure_future(flood())
            await asyncio.sleep(0.5)
            train(site.outbox, 1, 1)
            await site.device(Told())
            stop.set()
            await flooding
            seconds = time.monotonic() - began_s
            rates = Rates()
            assert len(answered) <= 2 * rates.questions_burst + rates.questions_per_s * seconds
            # Afterwards the device is heard again.
            before = len(answered)
            for _ in range(100):
                await asyncio.sleep(0.1)
                question = client.device_end("bus-2").sealed("ask", Ask().packed())
                await client.publish("up.bus-2.ask", question, reply="_INBOX_bus-2.x")
                if len(answered) > before:
                    break
            assert len(answered) > before

    finish(story())
    site.check()


def test_a_bucket_allows_its_burst_and_then_its_rate() -> None:
    now = [0.0]
    bucket = TokenBucket(per_s=2.0, burst=10.0, clock=lambda: now[0])
    assert [bucket.take(5.0), bucket.take(5.0), bucket.take(1.0)] == [True, True, False]
    assert bucket.wait_s(1.0) == 0.5
    now[0] = 0.5
    assert bucket.take(1.0)
    # A full bucket gives more than its burst at once, and is paid back later.
    now[0] = 100.0
    assert bucket.take(12.0)
    assert bucket.wait_s(1.0) == 1.5
