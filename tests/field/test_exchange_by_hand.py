"""One exchange, message by message, with and without losses."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.field.brokers import finish
from tests.field.parts import INITIAL, LINK, Fixed, Told, cut, noise, train
from tests.field.without_broker import QUICK, Site
from wayfare.device import Terms
from wayfare.field.runtime.exchange import Patience, _StopRequestedError
from wayfare.field.runtime.messages import Mark
from wayfare.field.runtime.radio import Radio, no_radio
from wayfare.methods import make_method
from wayfare.scenario import Scenario


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_exchange_asks_once_sends_every_chunk_once_and_takes_the_model(site: Site) -> None:
    train(site.outbox, 1, 1)
    guide = site.exchange()
    sent = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert [kind for kind, _ in site.wire.asked] == ["ask", *["chunk"] * len(sent), "finish", "part"]
    assert site.wire.asked[0][1].items() >= {"update": None, "seal": False, "fresh": True}.items()
    assert guide.heard == ["in reach", 8 * sum(map(len, sent))]
    end = {"round": 1, "update": 1, "have_version": 0, "take": True, "cut_short": False, "begun": None}
    assert site.wire.asked[-2][1].items() >= end.items()
    assert site.watts == [0.0, 0.1]
    assert torch.equal(site.outbox.model, site.wire.intake.ledger.model)
    assert len(set(site.wire.ids)) == len(sent) > 2
    assert site.outbox.progress.finished_round == 1
    # A device with a past says so.
    train(site.outbox, 2, 2)
    site.exchange()
    second = [data for kind, data in site.wire.asked if kind == "ask"][1]
    assert second.items() >= {"update": None, "seal": False, "fresh": False}.items()


def test_a_contact_with_nothing_to_send_names_the_last_update(site: Site) -> None:
    guide = site.exchange(entries=0)
    assert site.wire.counts() == {"ask": 1, "finish": 1, "part": 1}
    assert site.wire.asked[1][1]["update"] is None
    assert guide.heard == ["in reach"]
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
    assert [data for kind, data in site.wire.asked if kind == "ask"][1].items() >= {
        "update": 1,
        "seal": False,
        "fresh": False,
    }.items()
    # It is not sent again, and its bits, of which no mark told, do not count.
    assert site.wire.intake.counts[0].repeated == 0
    chunks = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert guide.heard[-1] == 8 * (sum(map(len, chunks)) - len(lost[0]))


def test_a_chunk_that_is_lost_goes_again_under_another_name(site: Site) -> None:
    train(site.outbox, 1, 1)
    site.wire.between["chunk"] = lambda seen, data: b"{}" if seen == 1 else None
    guide = site.exchange()
    chunks = [data for kind, data in site.wire.asked if kind == "chunk"]
    assert chunks[-1] == chunks[1]
    assert len(set(site.wire.ids)) == len(chunks)
    assert guide.heard[-1] == 8 * sum(map(len, chunks[:-1]))


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
    site.exchange(Told(resumes=False))
    assert site.wire.asked[0][1].items() >= {"update": 1, "seal": True, "fresh": False}.items()
    outcomes = [outcome for number, *_, outcome in site.outbox.outcomes() if number == 1]
    assert (outcomes[0], set(outcomes[1:])) == ("recorded", {"returned"})
    assert site.outbox.progress.last_update == 2


def test_an_exchange_that_was_begun_is_resumed_without_a_new_cut(site: Site) -> None:
    train(site.outbox, 1, 1)
    cut(site.outbox, 1)
    site.exchange()
    assert site.wire.asked[0][1].items() >= {"update": 1, "seal": False, "fresh": False}.items()
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


def test_a_device_with_another_scheme_sends_nothing_and_says_why(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    train(site.outbox, 1, 1)
    guide, stop = Told(), threading.Event()
    site.wire.intake.work = {"task": "1", "scheme": "2", "seed": "3"}
    exchanger = site.exchanger(guide)
    exchanger._work = {"task": "1", "scheme": "of another", "seed": "3"}

    async def story() -> None:
        running = asyncio.ensure_future(exchanger.run(stop))
        while "rejected" not in caplog.messages:
            await asyncio.sleep(0.001)
        stop.set()
        await running

    finish(story())
    reasons = {vars(record)["reason"] for record in caplog.records}
    assert reasons == {"scheme: must be the same on this device and on the server"}
    assert set(site.wire.counts()) == {"ask"}
    assert site.outbox.open_update() is None
    # What a former version does not send is not compared.
    exchanger._work = {}
    stop.clear()
    finish(exchanger.run(stop))
    assert site.wire.intake.ledger.version > 0


def test_marks_that_are_none_are_passed_over(site: Site) -> None:
    exchanger = site.exchanger(Told())
    finish(exchanger._on_mark(SimpleNamespace(data=b"{")))  # type: ignore[arg-type]
    assert not exchanger._news.is_set()
    finish(exchanger._on_mark(SimpleNamespace(data=Mark(update=3, recorded=[1, 4]).packed())))  # type: ignore[arg-type]
    assert exchanger._recorded == {(3, 1), (3, 4)}
    assert exchanger._refused is None


def test_a_device_out_of_reach_waits_and_says_so(site: Site) -> None:
    guide = Told()

    async def story() -> None:
        site.wire.connected.clear()
        exchanger = site.exchanger(guide)
        stop = threading.Event()
        running = asyncio.ensure_future(exchanger.run(stop))
        await asyncio.sleep(0.03)
        assert guide.heard == []
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
    assert guide.heard == ["in reach", "out of reach", "in reach"]
    assert site.wire.asked == []


def test_a_device_that_is_told_to_stop_leaves_its_promise_open(site: Site) -> None:
    train(site.outbox, 1, 1)
    cut(site.outbox, 1)
    exchanger = site.exchanger(Told())
    exchanger._stop.set()
    for step in (exchanger._deliver, lambda: exchanger._finish(1)):
        with pytest.raises(_StopRequestedError):
            finish(step())
    assert site.wire.asked == []
    assert site.outbox.open_update() is not None


def test_patience_and_radio_by_default() -> None:
    expected = Patience(answer_s=2.0, mark_s=2.0, idle_s=0.01, again_s=0.05, refused_s=2.0, window=3, part_window=8)
    assert Patience() == expected
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
    exchanger = site.exchanger(Told())
    exchanger._patience = patient
    # All marks are there long before patience ends.
    finish(exchanger.run(threading.Event()), 10)
    assert site.wire.counts()["ask"] == 1


@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_patience_ends_when_its_time_is_over(late_s: float, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanger = site.exchanger(Told())
    clock = iter([0.0, QUICK.mark_s + late_s])
    monkeypatch.setattr("wayfare.field.runtime.exchange.time", SimpleNamespace(monotonic=lambda: next(clock)))
    finish(exchanger._marks(1, {0}))
    assert list(clock) == []
