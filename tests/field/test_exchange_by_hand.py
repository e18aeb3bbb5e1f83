"""A device and the server without a broker between them: every message is seen, and any may be lost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.field.brokers import finish
from tests.field.parts import ENTRIES, INITIAL, LAYOUT, LINK, Fixed, cut, noise, open_ledger, open_outbox, train
from wayfare.codec.errors import WireError
from wayfare.device import DeviceState, Terms
from wayfare.errors import FieldError, RefusedError
from wayfare.field.runtime.exchange import Exchanger, Patience, Radio, _holes, _ToldToStopError, _windowed, no_radio
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.guide import Occasion
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.messages import Manifest, Mark
from wayfare.field.runtime.outbox import Outbox, Progress
from wayfare.methods import make_method
from wayfare.scenario import Scenario

QUICK = Patience(answer_s=0.3, mark_s=0.15, refused_s=0.01, again_s=0.01, idle_s=0.001)


class Once:
    """One exchange, and what the exchanger told of it."""

    def __init__(self, *, resumes: bool = True, exchanges: int = 1) -> None:
        self._resumes, self.left = resumes, exchanges
        self.told: list[object] = []

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        if self.left <= 0:
            return None
        return Occasion(round=progress.cut_round + 1, contact_s=1.0, gain_per_watt=1e3, chunk_bytes=300)

    def resumes(self, progress: Progress) -> bool:
        return self._resumes

    def is_over(self, progress: Progress) -> bool:
        return self.left <= 0

    def in_reach(self) -> None:
        self.told.append("in reach")

    def out_of_reach(self) -> None:
        self.told.append("out of reach")

    def measured(self, bits: float, seconds: float) -> None:
        assert 0 <= seconds < 30
        self.told.append(bits)

    def exchanged(self) -> None:
        self.left -= 1


class Wire:
    """Stands for client, broker and network: answers of a real intake, unless somebody is in between."""

    def __init__(self, folder: Path) -> None:
        self.intake = Intake(open_ledger(folder / "mes"), OnArrival(), LAYOUT, ["bus-1", "bus-2", "drone"])
        self.connected = asyncio.Event()
        self.connected.set()
        self.asked: list[tuple[str, Any]] = []
        self.between: dict[str, Callable[[int, bytes], bytes | None]] = {}
        self.ids: list[str] = []

    async def subscribe(self, subject: str, cb: Any) -> None:
        assert subject == "applied.bus-1"
        self.mark = cb

    async def request(self, subject: str, data: bytes, *, timeout: float, headers: dict[str, str] | None) -> Any:
        kind = subject.removeprefix("up.bus-1.")
        assert timeout == 0.3
        seen = sum(one == kind for one, _ in self.asked)
        self.asked.append((kind, data if kind == "chunk" else json.loads(data)))
        self.ids += [headers["Nats-Msg-Id"]] if headers else []
        await asyncio.sleep(0)
        if kind in self.between:
            answer = self.between[kind](seen, data)
            if answer is not None:
                return SimpleNamespace(data=answer)
        if kind == "chunk":
            for _, mark in self.intake.chunks([(0, data)]):
                await self.mark(SimpleNamespace(data=mark.packed()))
            return SimpleNamespace(data=b'{"seq":1}')
        answered = getattr(self.intake, kind)(0, data)
        return SimpleNamespace(data=answered if kind == "part" else answered.packed())

    def counts(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.asked)


class Site:
    def __init__(self, folder: Path) -> None:
        self.outbox, self.wire, self.watts = open_outbox(folder / "device"), Wire(folder), [0.0]

    def exchanger(self, guide: Once, outbox: Outbox | None = None, entries: int = 200) -> Exchanger:
        terms = Terms(method=make_method(Fixed(entries), Scenario()), link=LINK, rounds=100)
        radio = Radio(terms=terms, set_power_watts=self.watts.append)
        return Exchanger(self.wire, "bus-1", outbox or self.outbox, guide, radio, LAYOUT, QUICK)  # type: ignore[arg-type]

    def exchange(self, guide: Once | None = None, **settings: Any) -> Once:
        guide = guide or Once()
        finish(self.exchanger(guide, **settings).run(threading.Event()), 20)
        return guide


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_exchange_asks_once_sends_every_chunk_once_and_takes_the_model(site: Site) -> None:
    train(site.outbox, 1, 1)
    guide = site.exchange()
    sent = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert [kind for kind, _ in site.wire.asked] == ["ask", *["chunk"] * len(sent), "finish", "part"]
    assert site.wire.asked[0][1] == {"update": None, "seal": False, "fresh": True}
    assert guide.told == ["in reach", 8 * sum(map(len, sent))]
    assert site.wire.asked[-2][1] == {"round": 1, "update": 1, "have_version": 0, "take": True, "cut_short": False}
    assert site.watts == [0.0, 0.1]
    assert torch.equal(site.outbox.model, site.wire.intake.ledger.model)
    assert len(set(site.wire.ids)) == len(sent) > 2
    assert site.outbox.progress.finished_round == 1
    # A device with a past says so.
    train(site.outbox, 2, 2)
    site.exchange()
    second = [data for kind, data in site.wire.asked if kind == "ask"][1]
    assert second == {"update": None, "seal": False, "fresh": False}


def test_a_contact_with_nothing_to_send_names_the_last_update(site: Site) -> None:
    guide = site.exchange(entries=0)
    assert site.wire.counts() == {"ask": 1, "finish": 1, "part": 1}
    assert site.wire.asked[1][1]["update"] is None
    assert guide.told == ["in reach"]
    train(site.outbox, 1, 1)
    site.exchange()
    site.exchange(entries=0)
    assert [data["update"] for kind, data in site.wire.asked if kind == "finish"] == [None, 1, 1]


def test_a_mark_that_is_lost_costs_a_question(site: Site) -> None:
    train(site.outbox, 1, 1)
    lost: list[bytes] = []

    def record_and_say_nothing(seen: int, data: bytes) -> bytes | None:
        if seen == 1:
            site.wire.intake.chunks([(0, data)])
            lost.append(data)
            return b"{}"
        return None

    site.wire.between["chunk"] = record_and_say_nothing
    guide = site.exchange()
    counts = site.wire.counts()
    assert counts["ask"] == 2
    assert [data for kind, data in site.wire.asked if kind == "ask"][1] == {"update": 1, "seal": False, "fresh": False}
    # It is not sent again, and its bits, of which no mark told, do not count.
    assert site.wire.intake.counts[0].repeated == 0
    chunks = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert guide.told[-1] == 8 * (sum(map(len, chunks)) - len(lost[0]))


def test_a_chunk_that_is_lost_goes_again_under_another_name(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.wire.between["chunk"] = lambda seen, data: b"{}" if seen == 1 else None
    guide = site.exchange()
    chunks = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert chunks[-1] == chunks[1]
    assert len(set(site.wire.ids)) == len(chunks)
    assert guide.told[-1] == 8 * sum(map(len, chunks[:-1]))


def test_a_broker_without_room_is_asked_again(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.wire.between["chunk"] = lambda seen, data: b'{"error":"full"}' if seen == 0 else None
    site.exchange()
    assert site.outbox.progress.finished_round == 1
    # What was promised is resumed, not sealed.
    assert not any(data["seal"] for kind, data in site.wire.asked if kind == "ask")
    assert site.outbox.progress.last_update == 1


def test_an_update_of_another_contact_is_sealed_and_the_rest_taken_back(site: Site) -> None:
    train(site.outbox, 1, 1)
    cut(site.outbox, 1)
    site.wire.intake.chunks([(0, site.outbox.pending(1)[0][1])])
    site.exchange(Once(resumes=False))
    assert site.wire.asked[0][1] == {"update": 1, "seal": True, "fresh": False}
    outcomes = [outcome for number, *_, outcome in site.outbox.outcomes() if number == 1]
    assert (outcomes[0], set(outcomes[1:])) == ("recorded", {"returned"})
    assert site.outbox.progress.last_update == 2


def test_an_exchange_that_was_begun_is_resumed_without_a_new_cut(site: Site) -> None:
    train(site.outbox, 1, 1)
    cut(site.outbox, 1)
    site.exchange()
    assert site.wire.asked[0][1] == {"update": 1, "seal": False, "fresh": False}
    assert (site.outbox.progress.last_update, site.outbox.progress.finished_round) == (1, 1)
    assert site.watts == [0.0]


def test_a_refused_chunk_seals_its_update(site: Site) -> None:
    train(site.outbox, 1, 1)
    refused = SimpleNamespace(data=Mark(update=0, refused="too large").packed())
    told: list[object] = []

    def refuse(seen: int, data: bytes) -> bytes | None:
        if seen == 0:
            told.append(asyncio.ensure_future(site.wire.mark(refused)))
            return b"{}"
        return None

    site.wire.between["chunk"] = refuse
    site.exchange()
    assert [data["seal"] for kind, data in site.wire.asked if kind == "ask"] == [False, True, False]
    outcomes = [outcome for *_, outcome in site.outbox.outcomes()]
    assert (outcomes[0], set(outcomes[1:])) == ("returned", {"recorded"})
    # The exchange continues.
    assert site.outbox.progress.finished_round == 1


def test_marks_that_are_none_are_passed_over(site: Site) -> None:
    exchanger = site.exchanger(Once())
    finish(exchanger._on_mark(SimpleNamespace(data=b"{")))  # type: ignore[arg-type]
    assert not exchanger._news.is_set()
    finish(exchanger._on_mark(SimpleNamespace(data=Mark(update=3, recorded=[1, 4]).packed())))  # type: ignore[arg-type]
    assert exchanger._recorded == {(3, 1), (3, 4)}
    assert exchanger._refused is None


def test_the_end_of_an_exchange_waits_and_may_be_refused(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.wire.between["finish"] = lambda seen, data: Manifest(state="wait").packed() if seen < 3 else None
    site.exchange()
    assert site.wire.counts()["finish"] == 4
    site.wire.between["finish"] = lambda seen, data: Manifest(state="refused", reason="not you").packed()
    exchanger = site.exchanger(Once())
    with pytest.raises(RefusedError, match="not you"):
        finish(exchanger._finish(None))


def test_who_takes_no_model_asks_for_no_part(site: Site) -> None:
    site.outbox.cut(site.outbox.state, None, round_=1, next_update=1, chunk_bytes=300)
    exchanger = site.exchanger(Once())
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
    exchanger = site.exchanger(Once())
    with pytest.raises(WireError, match="a delta on version 0, here is 1"):
        finish(exchanger._finish(None))
    assert site.outbox.progress.version is None
    assert exchanger._parts is None


def test_a_whole_model_with_another_digest_leaves_the_version_alone(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.exchange()
    version = site.wire.intake.ledger.version
    offered = site.wire.intake.downloads.offer(site.wire.intake.ledger, version, None)
    wrong = Manifest(state="ready", version=version, size_bytes=len(offered.data), digest="0" * 32)
    site.wire.between["finish"] = lambda seen, data: wrong.packed()
    with pytest.raises(WireError, match="digest differs"):
        finish(site.exchanger(Once())._finish(None))
    assert site.outbox.progress.version == version


def offered(site: Site) -> Manifest:
    download = site.wire.intake.downloads.offer(site.wire.intake.ledger, 0, None)
    return Manifest(state="ready", size_bytes=len(download.data), digest=download.digest)


def test_a_model_larger_than_ours_can_be_is_not_begun(site: Site) -> None:
    most = 8 * ENTRIES + 4096
    with pytest.raises(WireError, match=f"a model of {most + 1} bytes, ours has at most {most}"):
        finish(site.exchanger(Once())._pull(Manifest(state="ready", size_bytes=most + 1)))
    exchanger = site.exchanger(Once())
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]
    assert len(finish(exchanger._pull(Manifest(state="ready", size_bytes=most)))) == most


def test_parts_grow_while_they_are_quick_and_shrink_when_one_is_lost(site: Site) -> None:
    exchanger = site.exchanger(Once())
    exchanger._most_bytes = 1 << 30
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]
    big = Manifest(state="ready", size_bytes=1_000_000)
    assert len(finish(exchanger._pull(big))) == 1_000_000
    sizes = [data["size_bytes"] for _, data in site.wire.asked]
    assert (sizes[0], max(sizes)) == (16 << 10, 256 << 10)
    assert exchanger._part_bytes == 256 << 10
    offsets = [data["offset"] for _, data in site.wire.asked]
    assert offsets == [sum(sizes[:place]) for place in range(len(sizes))]

    small = site.exchanger(Once())
    finish(small._pull(Manifest(state="ready", size_bytes=1000)))
    assert small._part_bytes == 32 << 10

    def fails(seen: int, data: bytes) -> bytes:
        raise FieldError("gone")

    site.wire.between["part"] = fails
    for expected in (64 << 10, 16 << 10, 4 << 10, 1 << 10, 1 << 10):
        exchanger._parts = None
        exchanger._patience = Patience(answer_s=0.3, window=1)
        with pytest.raises(FieldError, match="gone"):
            finish(exchanger._pull(big))
        assert exchanger._part_bytes == expected


def test_a_slow_part_leaves_the_size_as_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanger = site.exchanger(Once())
    clock = iter(range(0, 100))
    monkeypatch.setattr("wayfare.field.runtime.exchange.time.monotonic", lambda: next(clock) / 10)
    site.wire.between["part"] = lambda seen, data: b"x" * json.loads(data)["size_bytes"]

    async def pull() -> bytes:
        return await exchanger._pull(Manifest(state="ready", size_bytes=1000))

    loop = asyncio.new_event_loop()
    try:
        loop.time = lambda: 0.0  # type: ignore[method-assign]
        assert len(loop.run_until_complete(pull())) == 1000
    finally:
        loop.close()
    assert exchanger._part_bytes == 16 << 10


def test_parts_that_came_before_a_cut_are_not_asked_for_again(site: Site) -> None:
    exchanger = site.exchanger(Once())
    exchanger._part_bytes = 200
    manifest = offered(site)

    def breaks_off(seen: int, data: bytes) -> bytes | None:
        if seen == 2:
            raise FieldError("gone")
        return None

    site.wire.between["part"] = breaks_off
    with pytest.raises(FieldError, match="gone"):
        finish(exchanger._pull(manifest))
    assert exchanger._parts is not None
    had = dict(exchanger._parts[1])
    assert had
    before = len(site.wire.asked)
    data = finish(exchanger._pull(manifest))
    assert len(data) == manifest.size_bytes
    again = [asked["offset"] for _, asked in site.wire.asked[before:]]
    assert not set(again) & set(had)
    # Another model begins anew.
    site.wire.between["part"] = lambda seen, asked: b"y" * json.loads(asked)["size_bytes"]
    other = Manifest(state="ready", size_bytes=300, digest="other")
    assert finish(exchanger._pull(other)) == b"y" * 300


def test_a_model_that_is_not_kept_any_more_is_asked_for_anew(site: Site) -> None:
    exchanger = site.exchanger(Once())
    site.wire.between["part"] = lambda seen, data: b""
    with pytest.raises(WireError, match="does not keep this model"):
        finish(exchanger._pull(offered(site)))
    assert exchanger._parts is None


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
def test_holes_are_where_bytes_are_missing(parts: dict[int, bytes], holes: list[tuple[int, int]]) -> None:
    assert _holes(parts, 10) == holes


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

    finish(_windowed(work, range(7), window))
    assert (begun, most) == (list(range(7)), window)


def test_the_first_job_that_fails_ends_them_all() -> None:
    async def work(job: int) -> None:
        await asyncio.sleep(0.001 if job else 0)
        raise FieldError(f"job {job}")

    with pytest.raises(FieldError, match="job 0"):
        finish(_windowed(work, range(5), 3))


def test_a_device_out_of_reach_waits_and_says_so(site: Site) -> None:
    guide = Once()

    async def story() -> None:
        site.wire.connected.clear()
        exchanger = site.exchanger(guide)
        stop = threading.Event()
        running = asyncio.ensure_future(exchanger.run(stop))
        await asyncio.sleep(0.03)
        assert guide.told == []
        guide.left = 0
        await running
        guide.left = 1
        guide.occasion = lambda progress, state: None  # type: ignore[method-assign]
        site.wire.connected.set()
        running = asyncio.ensure_future(exchanger.run(stop))
        await asyncio.sleep(0.03)
        site.wire.connected.clear()
        await asyncio.sleep(0.03)
        site.wire.connected.set()
        await asyncio.sleep(0.03)
        stop.set()
        await running

    finish(story())
    assert guide.told == ["in reach", "out of reach", "in reach"]
    assert site.wire.asked == []


def test_a_device_that_is_told_to_stop_leaves_its_promise_open(site: Site) -> None:
    train(site.outbox, 1, 1)
    cut(site.outbox, 1)
    exchanger = site.exchanger(Once())
    exchanger._stop.set()
    for step in (exchanger._deliver, lambda: exchanger._finish(1)):
        with pytest.raises(_ToldToStopError):
            finish(step())
    assert site.wire.asked == []
    assert site.outbox.open_update() is not None


def test_patience_and_radio_by_default() -> None:
    assert Patience() == Patience(answer_s=2.0, mark_s=2.0, idle_s=0.01, again_s=0.05, refused_s=2.0, window=3)
    assert Radio(terms=Terms(method=make_method(Fixed(), Scenario()), link=LINK, rounds=1)).set_power_watts is no_radio
    no_radio(0.1)
    assert not torch.equal(INITIAL, noise(1))


@pytest.mark.parametrize("mark_s", [0.9, 60.0])
def test_marks_that_come_late_are_waited_for_and_cost_no_question(mark_s: float, site: Site) -> None:
    train(site.outbox, 1, 1)
    patient = Patience(answer_s=0.3, mark_s=mark_s, idle_s=0.001)
    told: list[object] = []

    def later(seen: int, data: bytes) -> bytes:
        async def tell() -> None:
            await asyncio.sleep(0.05)
            for _, mark in site.wire.intake.chunks([(0, data)]):
                await site.wire.mark(SimpleNamespace(data=mark.packed()))

        told.append(asyncio.ensure_future(tell()))
        return b"{}"

    site.wire.between["chunk"] = later
    exchanger = site.exchanger(Once())
    exchanger._patience = patient
    # All marks are there long before patience ends.
    finish(exchanger.run(threading.Event()), 10)
    assert site.wire.counts()["ask"] == 1


def test_patience_ends_when_its_time_is_over(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanger = site.exchanger(Once())
    clock = iter([0.0, QUICK.mark_s + 0.5])
    monkeypatch.setattr("wayfare.field.runtime.exchange.time", SimpleNamespace(monotonic=lambda: next(clock)))
    finish(exchanger._marks(1, {0}))
    assert list(clock) == []
