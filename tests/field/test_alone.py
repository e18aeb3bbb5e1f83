"""A server or a device alone: without a broker, without a server, or with a second server beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch

from tests.field.brokers import finish
from tests.field.parts import LAYOUT, Told, open_ledger, train
from tests.field.test_exchange import Site
from wayfare.field.fleet import Fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.backup import back_up, restore
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.endpoint import fetch_status
from wayfare.field.runtime.exchange import Patience
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.lease import Lease
from wayfare.field.runtime.logs import JsonLines, Sparing
from wayfare.field.runtime.mes import ServerOptions, _run

pytestmark = pytest.mark.system
NOWHERE = "tls://127.0.0.1:1"


def get(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_server_without_a_broker_is_healthy_says_so_and_ends_when_told(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wayfare.field.runtime.connect._PATIENT_LOOKS", 1)
    intake, stop = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT), threading.Event()
    options = ServerOptions(state=tmp_path, url=NOWHERE, metrics_port=0)

    async def story() -> None:
        with caplog.at_level(logging.INFO, "wayfare.field"):
            running = asyncio.ensure_future(_run(load_bundle(fleet.server_folder), intake, options, stop))
            while not any(record.message == "waiting for the broker" for record in caplog.records):
                await asyncio.sleep(0.02)
        url = next(vars(record)["url"] for record in caplog.records if record.message == "metrics")
        address = url.removeprefix("http://").removesuffix("/metrics")
        pages = [await asyncio.to_thread(get, address, page) for page in ("/healthz", "/readyz")]
        assert pages == [200, 503]
        assert not (await asyncio.to_thread(fetch_status, address)).broker_in_reach
        stop.set()
        await asyncio.wait_for(running, 5)

    logging.getLogger("wayfare").propagate = True
    finish(story())


def test_of_two_servers_from_one_bundle_one_answers_and_the_other_takes_over(
    fleet: Fleet, broker: Broker, tmp_path: Path
) -> None:
    async def story() -> None:
        bundle = load_bundle(fleet.server_folder)
        stops = [threading.Event(), threading.Event()]
        clients = [await connect(bundle, url=broker.url, wait_s=10) for _ in stops]
        leases = [Lease(client, f"host-{number}", lasts_s=2.0) for number, client in enumerate(clients)]
        keeping = [asyncio.ensure_future(lease.keep()) for lease in leases]
        began_s, held = time.monotonic(), set()
        while time.monotonic() - began_s < 1.5:
            held.add(tuple(lease.is_held for lease in leases))
            await asyncio.sleep(0.01)
        assert (True, True) not in held
        while not any(lease.is_held for lease in leases):
            ended = [task.exception() for task in keeping if task.done()]
            assert not ended, ended
            await asyncio.sleep(0.01)
        first = next(number for number, lease in enumerate(leases) if lease.is_held)
        # Killed: nobody gives the lease back.
        keeping[first].cancel()
        while not leases[1 - first].is_held:
            assert time.monotonic() - began_s < 20
            await asyncio.sleep(0.01)
        assert not leases[first].is_held
        # A process that restarts on the same host and folder does not wait.
        keeping[1 - first].cancel()
        # A renewal that is under way must not come between the two requests of the next one.
        await clients[1 - first].confirm()
        again = Lease(clients[first], f"host-{1 - first}", lasts_s=2.0)
        # On a busy machine one round trip may take longer than the lease.
        while not again.is_held:
            assert await again._renew() is None
        await again.release()
        assert not again.is_held
        assert await leases[first]._renew() is None
        for client in clients:
            await client.close()

    finish(story())


def test_a_server_with_another_lifetime_of_the_lease_changes_that_of_the_broker(fleet: Fleet, broker: Broker) -> None:
    async def story() -> None:
        client = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)

        async def lifetime_s() -> float | None:
            return (await client.jsm().stream_info("WAYFARE_LEASE")).config.max_age

        for lasts_s in (30.0, 60.0, 20.0):
            lease = Lease(client, "host", lasts_s)
            assert await lease._renew() is None
            assert lease.is_held
            assert await lifetime_s() == lasts_s
        # The lease is free, so nothing but the stream says how long it lasts.
        await lease.release()
        again = Lease(client, "another host", lasts_s=40.0)
        assert await again._renew() is None
        assert await lifetime_s() == 40.0
        # One that waits changes nothing.
        assert await Lease(client, "host", lasts_s=7.0)._renew() == "another host"
        assert await lifetime_s() == 40.0
        await again.release()
        await client.close()

    finish(story())


def test_a_holder_that_lost_the_lease_notices_at_its_next_renewal(fleet: Fleet, broker: Broker) -> None:
    async def story() -> None:
        client = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)
        first, second = Lease(client, "host", 60.0), Lease(client, "another host", 60.0)
        assert await first._renew() is None
        assert await first._renew() is None
        await client.jsm().purge_stream("WAYFARE_LEASE")
        assert await second._renew() is None
        assert await first._renew() == "another host"
        assert not first.is_held
        await second.release()
        assert await first._renew() is None
        await first.release()
        await client.close()

    finish(story())


def test_a_server_that_waits_for_the_lease_answers_nobody(
    fleet: Fleet, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(fleet, broker, tmp_path)

    async def story() -> None:
        other = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)
        # The usual 5 s: a lease must not end because the machine is busy.
        lease = Lease(other, "another host")
        assert await lease._renew() is None
        keeping = asyncio.ensure_future(lease.keep())
        async with site.server() as intake:
            train(site.outbox, 1, 1)
            waiting = asyncio.ensure_future(site.device(Told()))
            while "another server holds the lease; waiting" not in caplog.messages:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            assert not waiting.done()
            assert intake.ledger.version == 0
            keeping.cancel()
            await lease.release()
            await waiting
            assert intake.ledger.version > 0
        await other.close()

    logging.getLogger("wayfare").propagate = True
    finish(story())
    site.check()


def test_a_standby_with_a_backup_takes_over_and_devices_continue_from_its_model(
    fleet: Fleet, broker: Broker, tmp_path: Path
) -> None:
    site = Site(fleet, broker, tmp_path)

    async def exchange(seed: int) -> None:
        train(site.outbox, seed, seed)
        await site.device(Told())

    async def story() -> None:
        async with AsyncExitStack() as primary, AsyncExitStack() as others:
            first = await primary.enter_async_context(site.server())
            await exchange(1)
            back_up(tmp_path / "mes", tmp_path / "copy")
            restore(tmp_path / "copy", tmp_path / "standby")
            for seed in (2, 3, 4):
                # Confirmed after the backup: the standby does not have these.
                await exchange(seed)
            lost = first.ledger.version
            second = await others.enter_async_context(site.server("standby"))
            assert second.ledger.version < lost
            await asyncio.sleep(0.3)
            assert second.counts[0].exchanges == 0
            await primary.aclose()
            # The standby rejects an update against a model that it does not have. Its entries return to the memory.
            train(site.outbox, 5, 5)
            await asyncio.wait_for(site.device(Told()), 15)
            assert second.counts[0].refused
            assert site.outbox.state.memory.any()
            assert torch.equal(site.outbox.model, second.ledger.model)
            version = second.ledger.version
            await asyncio.wait_for(exchange(6), 15)
            assert second.ledger.version > version
            assert torch.equal(second.ledger.replay().model, second.ledger.model)
            assert torch.equal(site.outbox.model, second.ledger.model)

    finish(story(), 60)


def test_a_device_without_a_server_asks_ever_less_often() -> None:
    patience = Patience()
    pauses = [patience.after(failures) for failures in range(1, 12)]
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-1] == patience.after(1000) == 2.0


def test_a_message_is_logged_once_a_minute_and_counts_the_others() -> None:
    now = [0.0]
    sparing, lines = Sparing(every_s=60.0, clock=lambda: now[0]), JsonLines("bus-1")
    shown = []
    for second in range(130):
        now[0] = float(second)
        for device in ("bus-1", "bus-2"):
            record = logging.makeLogRecord({"msg": "exchange interrupted", "levelno": 20, "device": device})
            if sparing.filter(record):
                shown.append(json.loads(lines.format(record)))
    assert [(line["device"], line.get("hidden")) for line in shown] == [
        *(("bus-1", None), ("bus-2", None), ("bus-1", 59), ("bus-2", 59), ("bus-1", 59), ("bus-2", 59))
    ]
    assert sparing.filter(logging.makeLogRecord({"msg": "another message"}))
