"""Downloads that resume: across contacts, restarts of both sides, and versions that other devices make meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from tests.field.brokers import finish
from tests.field.parts import INITIAL, LAYOUT, Told, aggregation, open_ledger, open_outbox, train
from tests.field.without_broker import Site
from wayfare.codec.wire import Layout
from wayfare.device import Terms
from wayfare.field.fleet import Fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.proxy import Link as Air
from wayfare.field.runtime.begun import BegunDownload
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.downloads import Downloads
from wayfare.field.runtime.exchange import Exchanger
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.mes import MobileEdgeServer, ServerOptions
from wayfare.field.runtime.messages import Begun, Chunk, Finish, Manifest
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.methods import make_method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse, top_k


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def another_device_exchanges(intake: Intake, seed: int, layout: Layout = LAYOUT) -> None:
    """A whole update of another device, so that the model changes everywhere."""
    number = intake.ledger.standing(1, None)[0]
    entries = torch.randn(layout.parameters, generator=torch.Generator().manual_seed(seed))
    chunk = Chunk(
        update=number, chunk=0, chunks=1, round=number, received_round=0, base_version=0, spent_joules=0.0,
        entries=Sparse(torch.arange(layout.parameters), entries),
    )  # fmt: skip
    intake.chunks([(1, chunk.packed(layout))])


class LostError(Exception):
    pass


def interrupt_after(site: Site, parts: int) -> None:
    """The link is lost after some parts of this contact."""
    already = site.wire.counts()["part"]

    def lose(seen: int, data: bytes) -> bytes | None:
        if seen >= already + parts:
            raise LostError
        return None

    site.wire.between["part"] = lose


def contact_is_lost(site: Site, *, parts: int) -> None:
    interrupt_after(site, parts)
    exchanger = site.exchanger(Told(resumes=False))
    exchanger._puller.part_bytes, site.wire.mark = 150, exchanger._on_mark
    with pytest.raises(LostError):
        finish(exchanger._exchange())
    del site.wire.between["part"]


def test_a_download_resumes_in_the_next_contact_although_the_version_moved(site: Site) -> None:
    for contact in range(2):
        train(site.outbox, contact + 1, contact + 1)
        contact_is_lost(site, parts=2)
        another_device_exchanges(site.wire.intake, contact)
    had = {data["offset"] for kind, data in site.wire.asked if kind == "part"}
    begun = {data["version"] for kind, data in site.wire.asked if kind == "part"}
    assert len(begun) == 1
    before = len(site.wire.asked)
    train(site.outbox, 3, 3)
    site.exchange(Told(resumes=False))
    assert site.outbox.progress.version in begun
    again = {data["offset"] for kind, data in site.wire.asked[before:] if kind == "part"}
    # The part that was on the air when the link was lost comes again.
    assert len(again & had) <= 3
    assert torch.equal(site.outbox.model, site.wire.intake.ledger.model_at(min(begun)))


def test_a_download_resumes_after_a_restart_of_the_device(site: Site, tmp_path: Path) -> None:
    train(site.outbox, 1, 1)
    contact_is_lost(site, parts=3)
    site.outbox.close()
    site.outbox = open_outbox(tmp_path / "device")
    another_device_exchanges(site.wire.intake, 1)
    had = BegunDownload(site.outbox.file)
    assert had.manifest is not None
    assert had.left_bytes < had.manifest.size_bytes
    site.exchange(Told(resumes=False))
    assert site.outbox.progress.version == had.manifest.version
    assert BegunDownload(site.outbox.file).manifest is None


def test_a_download_resumes_after_a_restart_of_the_server(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    intake = Intake(ledger, OnArrival(), LAYOUT)
    another_device_exchanges(intake, 1)
    offered = intake.finish(0, Finish(round=1).packed())
    intake.close()
    again = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT)
    another_device_exchanges(again, 2)
    assert again.finish(0, Finish(round=2, begun=begun(offered, left_bytes=10)).packed()) == offered
    assert len(again.downloads.part(0, offered.version, None, 0, 1 << 20)) == offered.size_bytes


def begun(manifest: Manifest, *, left_bytes: int) -> Begun:
    return Begun(
        version=manifest.version,
        base_version=manifest.base_version,
        digest=manifest.digest,
        handed_digest=manifest.handed_digest,
        left_bytes=left_bytes,
    )


def test_a_begun_version_is_superseded_if_the_newest_takes_fewer_bytes(tmp_path: Path) -> None:
    intake = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT)
    another_device_exchanges(intake, 1)
    old = intake.finish(0, Finish(round=1, have_version=0).packed())
    small = Chunk(
        update=1, chunk=0, chunks=1, round=1, received_round=0, base_version=0, spent_joules=0.0,
        entries=top_k(INITIAL[: LAYOUT.parameters], 3),
    )  # fmt: skip
    intake.chunks([(2, small.packed(LAYOUT))])
    asked = Finish(round=2, have_version=1, begun=begun(old, left_bytes=old.size_bytes - 10))
    newer = intake.finish(0, asked.packed())
    assert (newer.version, newer.base_version) == (2, 1)
    assert newer.size_bytes < old.size_bytes - 10
    kept = replace_left(asked, 20)
    assert intake.finish(0, kept.packed()).version == 1


def replace_left(asked: Finish, left_bytes: int) -> Finish:
    assert asked.begun is not None
    return asked.model_copy(update={"begun": asked.begun.model_copy(update={"left_bytes": left_bytes})})


def test_a_begun_version_that_the_server_cannot_serve_is_superseded(tmp_path: Path) -> None:
    intake = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT)
    another_device_exchanges(intake, 1)
    unknown = Begun(version=1, digest="0" * 64, handed_digest="", left_bytes=1)
    assert intake.finish(0, Finish(round=1, begun=unknown).packed()).version == 1


def test_begun_versions_that_do_not_fit_into_memory_go_to_disk_and_the_oldest_are_dropped(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "mes")
    intake = Intake(ledger, OnArrival(), LAYOUT)
    downloads = Downloads(LAYOUT, tmp_path / "downloads", kept_bytes=1500, stored_bytes=2500)
    made = []
    for device in (0, 1, 2):
        another_device_exchanges(intake, device)
        made.append(downloads.offer(ledger, ledger.version, None))
        downloads.begin(device, made[-1])
    assert len(list((tmp_path / "downloads").iterdir())) == 2
    for device, one in enumerate(made):
        assert downloads.part(device, one.version, None, 0, 1 << 20) == one.data
    # A fourth one leaves room for two on disk.
    another_device_exchanges(intake, 4)
    downloads.begin(0, downloads.offer(ledger, ledger.version, None))
    downloads.begin(1, downloads.offer(ledger, ledger.version, None))
    assert len(list((tmp_path / "downloads").iterdir())) <= 2


def test_a_file_of_a_begun_download_that_was_cut_short_keeps_its_whole_parts(tmp_path: Path) -> None:
    manifest = Manifest(state="ready", version=3, size_bytes=100, digest="a" * 64)
    store = tmp_path / "device.sqlite"
    partial = BegunDownload(store)
    partial.begin(manifest)
    partial.add(0, b"x" * 40)
    partial.add(60, b"y" * 40)
    partial.save()
    file = next(tmp_path.glob("device.sqlite*"))
    file.write_bytes(file.read_bytes()[:-1])
    again = BegunDownload(store)
    assert (again.manifest, again.left_bytes, again.holes()) == (manifest, 60, [(40, 100)])
    file.write_bytes(b"something else")
    assert BegunDownload(store).manifest is None


@pytest.mark.system
def test_a_device_with_short_contacts_gets_its_model_within_a_few_contacts(
    fleet: Fleet, broker: Broker, tmp_path: Path
) -> None:
    """On an idle machine three, as with the whole model in docs/results/field-speed.md. Once no number sufficed."""
    layout = Layout.of("hundredth", [(65_000,)])
    first = torch.randn(65_000, generator=torch.Generator().manual_seed(0)) * 0.02
    method = make_method("mads", Scenario())
    link = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=65_000, bits_per_entry=42.0, dense_bits=2e6)
    outbox = Outbox(tmp_path / "d.sqlite", first, method, layout=layout, budget_joules=10.0, identity={"fleet": "one"})
    ledger = Ledger(
        tmp_path / "mes", first, layout=layout, aggregation=aggregation(), identity={"fleet": "a"}, names=fleet.devices
    )
    intake, stop = Intake(ledger, OnArrival(), layout), threading.Event()

    async def others() -> None:
        for seed in range(1000):
            another_device_exchanges(intake, seed, layout)
            await asyncio.sleep(0.4)

    async def story() -> int:
        air = await Air(broker.port).start()
        server = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)
        serving = asyncio.ensure_future(
            MobileEdgeServer(server, intake, ServerOptions(state=tmp_path / "mes")).run(stop)
        )
        disturbing = asyncio.ensure_future(others())
        connecting = asyncio.ensure_future(connect(load_bundle(fleet.device_folder("bus-1")), url=air.url))
        contacts = 0
        device = running = None
        while outbox.progress.version == 0 and contacts < 8:
            air.open(1e6, 1e6)
            contacts += 1
            if running is None:
                device = await connecting
                terms = Terms(method=method, link=link, rounds=100)
                exchanger = Exchanger(device, "bus-1", outbox, Told(resumes=False), Radio(terms=terms), layout)
                running = asyncio.ensure_future(exchanger.run(stop))
            await asyncio.sleep(1.0)
            air.close()
            await asyncio.sleep(0.3)
        stop.set()
        disturbing.cancel()
        assert device is not None
        assert running is not None
        await running
        await serving
        await device.close()
        await server.close()
        await air.stop()
        return contacts

    assert finish(story()) <= 6
    assert outbox.progress.version
    assert ledger.version > outbox.progress.version
