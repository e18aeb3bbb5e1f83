"""The end of an exchange: the server says when, and the model comes down in parts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.field.brokers import finish
from tests.field.parts import ENTRIES, Told, train
from tests.field.without_broker import Site
from wayfare.codec.errors import WireError
from wayfare.errors import FieldError, RefusedError
from wayfare.field.runtime.begun import BegunDownload
from wayfare.field.runtime.exchange import Exchanger
from wayfare.field.runtime.messages import Manifest
from wayfare.field.runtime.windowed import windowed


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_end_of_an_exchange_waits_and_may_be_refused(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.wire.between["finish"] = lambda seen, data: Manifest(state="wait").packed() if seen < 3 else None
    site.exchange()
    assert site.wire.counts()["finish"] == 4
    site.wire.between["finish"] = lambda seen, data: Manifest(state="refused", reason="not you").packed()
    exchanger = site.exchanger(Told())
    with pytest.raises(RefusedError, match="not you"):
        finish(exchanger._finish(None))


def test_who_takes_no_model_asks_for_no_part(site: Site) -> None:
    site.outbox.cut(site.outbox.state, None, round_=1, next_update=1, chunk_bytes=300)
    exchanger = site.exchanger(Told())
    finish(exchanger._finish(None))
    assert site.wire.counts() == {"finish": 1}
    assert site.wire.asked[0][1]["take"] is False
    assert site.outbox.progress.finished_round == 1


def test_a_delta_on_another_version_is_not_taken_and_the_next_model_comes_whole(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.exchange(entries=5)
    offered = site.wire.intake.downloads.offer(site.wire.intake.ledger, 1, 0)
    wrong = Manifest(state="ready", version=1, base_version=0, size_bytes=len(offered.data), digest=offered.digest)
    site.wire.between["finish"] = lambda seen, data: wrong.packed()
    exchanger = site.exchanger(Told())
    with pytest.raises(WireError, match="base_version = 0: this device has version 1"):
        finish(exchanger._finish(None))
    assert site.outbox.progress.version is None
    assert exchanger._begun.manifest is None


def test_a_whole_model_with_another_digest_leaves_the_version_alone(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.exchange()
    version = site.wire.intake.ledger.version
    offered = site.wire.intake.downloads.offer(site.wire.intake.ledger, version, None)
    wrong = Manifest(state="ready", version=version, size_bytes=len(offered.data), digest="0" * 32)
    site.wire.between["finish"] = lambda seen, data: wrong.packed()
    with pytest.raises(WireError, match="digest differs"):
        finish(site.exchanger(Told())._finish(None))
    assert site.outbox.progress.version == version


def offered(site: Site) -> Manifest:
    download = site.wire.intake.downloads.offer(site.wire.intake.ledger, 0, None)
    return Manifest(state="ready", size_bytes=len(download.data), digest=download.digest)


async def pull(exchanger: Exchanger, manifest: Manifest) -> None:
    await exchanger._puller.pull(exchanger._begun, manifest)


def pulled(exchanger: Exchanger, manifest: Manifest) -> bytes:
    finish(pull(exchanger, manifest))
    return exchanger._begun.data()


def test_a_model_larger_than_ours_can_be_is_not_begun(site: Site) -> None:
    most = 8 * ENTRIES + 4096
    with pytest.raises(WireError, match=f"a download of {most + 1} bytes, the limit is {most}"):
        finish(pull(site.exchanger(Told()), Manifest(state="ready", size_bytes=most + 1)))
    exchanger = site.exchanger(Told())
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]
    assert len(pulled(exchanger, Manifest(state="ready", size_bytes=most))) == most


def test_parts_grow_while_they_are_quick_and_shrink_when_one_is_lost(site: Site) -> None:
    exchanger = site.exchanger(Told())
    exchanger._puller.max_bytes = 1 << 30
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]
    big = Manifest(state="ready", size_bytes=2_000_000)
    assert len(pulled(exchanger, big)) == 2_000_000
    sizes = [data["size_bytes"] for _, data in site.wire.asked]
    assert (sizes[0], max(sizes)) == (16 << 10, 512 << 10)
    assert exchanger._puller.part_bytes == 512 << 10
    offsets = [data["offset"] for _, data in site.wire.asked]
    assert offsets == [sum(sizes[:place]) for place in range(len(sizes))]

    small = site.exchanger(Told())
    finish(pull(small, Manifest(state="ready", size_bytes=1000)))
    assert small._puller.part_bytes == 32 << 10

    def fails(seen: int, data: bytes) -> bytes:
        raise FieldError("gone")

    site.wire.between["part"] = fails
    for expected in (128 << 10, 32 << 10, 8 << 10, 2 << 10, 1 << 10, 1 << 10):
        exchanger._begun.clear()
        exchanger._puller.slow_window = exchanger._puller.fast_window = 1
        with pytest.raises(FieldError, match="gone"):
            finish(pull(exchanger, big))
        assert exchanger._puller.part_bytes == expected


def test_a_slow_part_leaves_the_size_as_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanger = site.exchanger(Told())
    clock = iter(range(0, 100))
    monkeypatch.setattr("wayfare.field.runtime.exchange.time.monotonic", lambda: float(next(clock)))
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]

    async def whole() -> bytes:
        await pull(exchanger, Manifest(state="ready", size_bytes=1000))
        return exchanger._begun.data()

    loop = asyncio.new_event_loop()
    try:
        loop.time = lambda: 0.0  # type: ignore[method-assign]
        assert len(loop.run_until_complete(whole())) == 1000
    finally:
        loop.close()
    assert exchanger._puller.part_bytes == 16 << 10


def test_parts_that_came_before_a_cut_are_not_asked_for_again(site: Site) -> None:
    exchanger = site.exchanger(Told())
    exchanger._puller.part_bytes = 200
    manifest = offered(site)

    def breaks_off(seen: int, data: bytes) -> bytes | None:
        if seen == 2:
            raise FieldError("gone")
        return None

    site.wire.between["part"] = breaks_off
    with pytest.raises(FieldError, match="gone"):
        finish(pull(exchanger, manifest))
    had = dict(exchanger._begun._parts)
    assert had
    before = len(site.wire.asked)
    data = pulled(exchanger, manifest)
    assert len(data) == manifest.size_bytes
    again = [asked["offset"] for _, asked in site.wire.asked[before:]]
    assert not set(again) & set(had)
    # Another model begins anew.
    site.wire.between["part"] = lambda seen, asked: b"y" * json.loads(asked)["size_bytes"]
    other = Manifest(state="ready", size_bytes=300, digest="other")
    assert pulled(exchanger, other) == b"y" * 300


def test_a_model_that_is_not_kept_any_more_is_asked_for_anew(site: Site) -> None:
    exchanger = site.exchanger(Told())
    site.wire.between["part"] = lambda seen, data: b""
    with pytest.raises(WireError, match="no longer keeps this model"):
        finish(pull(exchanger, offered(site)))
    assert exchanger._begun.manifest is None


@pytest.mark.parametrize(
    ("parts", "holes"),
    [
        ({}, [(0, 10)]),
        ({0: b"abc"}, [(3, 10)]),
        ({3: b"abc"}, [(0, 3), (6, 10)]),
        ({3: b"abc", 6: b"abcd"}, [(0, 3)]),
        ({0: b"abc", 5: b"a", 8: b"ab"}, [(3, 5), (6, 8)]),
        ({0: b"0123456789"}, []),
    ],
)
def test_holes_are_where_bytes_are_missing(
    parts: dict[int, bytes], holes: list[tuple[int, int]], tmp_path: Path
) -> None:
    begun = BegunDownload(tmp_path / "device.sqlite")
    begun.begin(Manifest(state="ready", size_bytes=10))
    for offset, piece in parts.items():
        begun.add(offset, piece)
    assert begun.holes() == holes


@pytest.mark.parametrize("window", [1, 3])
def test_jobs_are_begun_in_order_so_many_at_a_time(window: int) -> None:
    under_way, most, begun = 0, 0, []

    async def work(job: int) -> None:
        nonlocal under_way, most
        begun.append(job)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1

    finish(windowed(work, range(7), window))
    assert (begun, most) == (list(range(7)), window)


def test_the_first_job_that_fails_ends_them_all() -> None:
    async def work(job: int) -> None:
        await asyncio.sleep(0.001 if job else 0)
        raise FieldError(f"job {job}")

    with pytest.raises(FieldError, match="job 0"):
        finish(windowed(work, range(5), 3))
