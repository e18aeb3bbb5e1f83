"""A device and the server over a real broker that loses things."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.brokers import finish
from tests.field.fuzzing import KINDS
from tests.field.parts import INITIAL, LAYOUT, LINK, Fixed, Told, open_ledger, open_outbox, train
from tests.field.test_ledger import chunks_of
from wayfare.device import Terms
from wayfare.field.fleet import Fleet, load_bundle
from wayfare.field.rig.audit import audit
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.mes import MobileEdgeServer, ServerOptions
from wayfare.field.runtime.messages import Ask, Mark
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.rules import Limits
from wayfare.methods import make_method
from wayfare.scenario import Scenario

pytestmark = pytest.mark.system

QUICK = Patience(answer_s=0.3, mark_s=0.3, refused_s=0.05, again_s=0.02)


class Site:
    """A fleet's broker with a server's state and one device's."""

    def __init__(self, fleet: Fleet, broker: Broker, folder: Path, limits: Limits | None = None) -> None:
        self.fleet, self.broker, self.folder, self.limits = fleet, broker, folder, limits
        self.outbox = open_outbox(folder / "device")

    @asynccontextmanager
    async def server(self, state: str = "mes", **options: int) -> AsyncIterator[Intake]:
        ledger = open_ledger(self.folder / state, self.limits)
        client = await connect(load_bundle(self.fleet.server_folder), url=self.broker.url, wait_s=10)
        intake, stop = Intake(ledger, OnArrival(), LAYOUT), threading.Event()
        running = asyncio.ensure_future(
            MobileEdgeServer(client, intake, ServerOptions(state=self.folder / state, **options)).run(stop)
        )
        try:
            yield intake
        finally:
            stop.set()
            await running
            await client.close()
            ledger.close()

    def ledger(self) -> Ledger:
        return open_ledger(self.folder / "mes", self.limits)

    async def device(
        self, guide: Told, *, entries: int = 200, outbox: Outbox | None = None, stop: threading.Event | None = None
    ) -> None:
        client = await connect(load_bundle(self.fleet.device_folder("bus-1")), url=self.broker.url, wait_s=10)
        radio = Radio(terms=Terms(method=make_method(Fixed(entries), Scenario()), link=LINK, rounds=100))
        try:
            exchanger = Exchanger(client, "bus-1", outbox or self.outbox, guide, radio, LAYOUT, QUICK)
            await exchanger.run(stop or threading.Event())
        finally:
            await client.close()

    def check(self, *, returned: bool = False) -> None:
        ledger = self.ledger()
        found = audit(ledger, [self.outbox], LAYOUT)
        assert found.promised == 0
        assert found.recorded > 0
        assert bool(found.returned) == returned
        assert torch.equal(self.outbox.model, ledger.model)
        ledger.close()


@pytest.fixture
def site(fleet: Fleet, broker: Broker, tmp_path: Path) -> Site:
    return Site(fleet, broker, tmp_path)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_a_device_that_waits_for_others_ends_when_it_is_told_to(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with site.server() as intake:
            train(site.outbox, 1, 1)
            monkeypatch.setattr(intake.gathering, "version_for", lambda *_, **__: None)
            stop = threading.Event()
            waiting = asyncio.ensure_future(site.device(Told(), stop=stop))
            await until(lambda: site.outbox.open_update() is None and site.outbox.progress.cut_round == 1)
            assert not waiting.done()
            stop.set()
            await asyncio.wait_for(waiting, 5)
            assert site.outbox.progress.finished_round == 0
            monkeypatch.undo()
            await site.device(Told())
            assert torch.equal(site.outbox.model, intake.ledger.model)

    finish(story())
    site.check()


def test_an_exchange_delivers_all_that_was_cut_and_takes_the_model(site: Site) -> None:
    async def story() -> None:
        async with site.server() as intake:
            for round_ in range(1, 4):
                train(site.outbox, round_, round_)
                guide = Told()
                await site.device(guide)
                assert guide.bits() > 0
                assert site.outbox.progress.version == intake.ledger.version
                assert torch.equal(site.outbox.model, intake.ledger.model)
            counts = intake.counts[0]
            assert (counts.exchanges, counts.refused, counts.repeated) == (3, 0, 0)

    finish(story())
    site.check()


def test_a_device_whose_model_is_not_the_servers_takes_the_whole(site: Site) -> None:
    async def story() -> None:
        async with site.server() as intake:
            train(site.outbox, 1, 1)
            await site.device(Told(), entries=20)
            site.outbox._vectors["model"] = INITIAL + 1
            train(site.outbox, 2, 2)
            await site.device(Told(), entries=20)
            assert torch.equal(site.outbox.model, intake.ledger.model)

    finish(story())
    site.check()


def test_a_contact_with_nothing_to_send_still_takes_the_model(site: Site) -> None:
    async def story() -> None:
        async with site.server():
            train(site.outbox, 1, 1)
            await site.device(Told())
            train(site.outbox, 2, 2)
            await site.device(Told(), entries=0)
            assert site.outbox.progress.finished_round == 2

    finish(story())
    site.check()


def test_chunks_wait_for_a_server_that_comes_later(site: Site) -> None:
    async def story() -> None:
        train(site.outbox, 1, 1)
        waiting = asyncio.ensure_future(site.device(Told()))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with site.server():
            await waiting

    finish(story())
    site.check()


def test_what_the_broker_acked_and_lost_is_sent_again(site: Site) -> None:
    async def story() -> None:
        train(site.outbox, 1, 1)
        async with site.server() as intake:
            recorded = type(intake).chunks
            lost: list[int] = []

            def lose(self: Intake, batch: list[tuple[int, bytes]]) -> list[tuple[int, Mark]]:
                # Acked by the broker and by the server, and yet never recorded.
                lost.append(len(batch))
                return [] if len(lost) <= 2 else recorded(self, batch)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Intake, "chunks", lose)
                await site.device(Told())
            assert len(lost) > 2

    finish(story())
    site.check()


def test_a_broker_that_loses_its_whole_store_costs_nothing(site: Site) -> None:
    async def story() -> None:
        async with site.server():
            train(site.outbox, 1, 1)
            await site.device(Told())
            await asyncio.to_thread(site.broker.kill)
            shutil.rmtree(site.folder / "store" / "jetstream")
            await asyncio.to_thread(site.broker.start)
            train(site.outbox, 2, 2)
            await site.device(Told())

    finish(story())
    site.check()


def test_an_update_of_an_earlier_contact_is_sealed_and_the_rest_taken_back(site: Site) -> None:
    async def story() -> None:
        from tests.field.parts import cut

        train(site.outbox, 1, 1)
        cut(site.outbox, 1)
        chunks = site.outbox.pending(1)
        async with site.server() as intake:
            intake.chunks([(0, data) for _, data in chunks[:2]])
            train(site.outbox, 2, 2)
            await site.device(Told(resumes=False))
            outcomes = [outcome for number, _, _, outcome in site.outbox.outcomes() if number == 1]
            assert outcomes == ["recorded"] * 2 + ["returned"] * (len(chunks) - 2)
            # A chunk of it that was still on its way changes nothing.
            version = intake.ledger.version
            ((_, mark),) = intake.chunks([(0, chunks[-1][1])])
            assert "closed" in mark.refused
            assert intake.ledger.version == version

    finish(story())
    site.check(returned=True)


def test_an_upload_that_is_refused_goes_back_and_the_device_goes_on(fleet, broker, tmp_path, caplog) -> None:
    site = Site(fleet, broker, tmp_path, Limits(largest_value=1.0))

    async def story() -> None:
        async with site.server():
            start = site.outbox.local
            site.outbox.trained(start, start + 5.0, 1)
            await site.device(Told())
            assert site.outbox.progress.finished_round == 1
            # Small enough, it gets in.
            start = site.outbox.local
            site.outbox.trained(start, start - 4.9, 2)
            await site.device(Told())

    finish(story())
    site.check(returned=True)
    assert "must be at most 1" in str([record.__dict__.get("reason") for record in caplog.records])


def test_garbage_over_the_broker_is_refused_and_the_server_goes_on(fleet, broker, tmp_path, caplog) -> None:
    site = Site(fleet, broker, tmp_path, Limits(budget_joules=1e6))
    caplog.set_level("ERROR", logger="wayfare.field")
    rng = np.random.default_rng(5)

    async def story() -> None:
        async with site.server() as intake:
            train(site.outbox, 1, 1)
            await site.device(Told())
            intake.chunks([(1, data) for data in chunks_of(1, spent=1.0)])
            model = intake.ledger.model
            client = await connect(load_bundle(site.fleet.device_folder("bus-2")), url=site.broker.url, wait_s=10)
            end = client.device_end("bus-2")
            await client.request("up.bus-2.ask", end.sealed("ask", Ask().packed()), timeout=5)
            for _ in range(300):
                data, kind = KINDS[int(rng.integers(len(KINDS)))](rng), str(rng.choice(["chunk", "finish", "part"]))
                await client.request(f"up.bus-2.{kind}", end.sealed(kind, data), timeout=5)
            # A question that is none gets no answer; one whose answer would go to somebody else, neither.
            await client.publish("up.bus-2.ask", end.sealed("ask", b"{"))
            await client.publish("up.bus-2.ask", end.sealed("ask", b"{}"), reply="applied.bus-1")
            await client.confirm()
            await until(lambda: intake.counts[1].refused > 100)
            await client.close()
            assert intake.ledger.model is model
            train(site.outbox, 2, 2)
            await site.device(Told())
            assert torch.equal(site.outbox.model, intake.ledger.model)
            assert torch.equal(intake.ledger.replay().model, intake.ledger.model)

    finish(story())


def test_a_device_that_sends_more_than_its_share_waits_and_harms_nobody(site: Site) -> None:
    async def story() -> None:
        train(site.outbox, 1, 1)
        async with site.server(stored_chunks=1):
            await site.device(Told())

    finish(story())
    site.check()
