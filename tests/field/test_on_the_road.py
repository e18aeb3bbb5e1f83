"""What a vehicle allows its device: when to train, and how many bytes a day."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from tests.field.brokers import finish
from tests.field.parts import METHOD, Told, open_outbox, terms_with, train
from tests.field.without_broker import Site
from wayfare.errors import FieldError
from wayfare.field.runtime.daily import DailyBytes
from wayfare.field.runtime.device_pages import device_pages
from wayfare.field.runtime.permission import Permission, always, by_command
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.trainer import LocalTrainer

DAY_S = 86_400.0


def test_a_device_asks_now_and_then_whether_it_may_train() -> None:
    now, answers, asked = [0.0], [True, False, True], []

    def may_train() -> bool:
        asked.append(now[0])
        if len(asked) == 4:
            raise OSError("no sensor")
        return answers[len(asked) - 1]

    permission = Permission(may_train, every_s=5.0, clock=lambda: now[0])
    found = []
    for second in range(20):
        now[0] = float(second)
        found.append(permission())
    assert asked == [0.0, 5.0, 10.0, 15.0]
    assert found == [True] * 5 + [False] * 5 + [True] * 5 + [False] * 5
    assert Permission()() is always() is True


def test_a_command_that_fails_forbids_training(caplog: pytest.LogCaptureFixture) -> None:
    assert by_command("true")()
    assert not by_command("exit 3")()
    with caplog.at_level("INFO", "wayfare.field"):
        assert not Permission(by_command("./missing"))()
    assert caplog.messages == ["may_train failed; the device does not train", "training pauses"]
    assert "./missing: not found" in vars(caplog.records[0])["reason"]


def test_a_trainer_without_permission_takes_no_step(tmp_path: Path) -> None:
    class Steps:
        taken = 0

        def run(self, vectors: list[torch.Tensor], bursts: list[object]) -> None:
            self.taken += 1

    stop, engine = threading.Event(), Steps()
    allowed = [False]
    trainer = LocalTrainer(
        open_outbox(tmp_path),
        engine,  # type: ignore[arg-type]
        0,
        Told(),
        terms_with(METHOD),
        may_train=lambda: allowed[0],
    )
    trainer._may_train.every_s = 0.0
    running = threading.Thread(target=trainer.run, args=(stop,))
    running.start()
    stop.wait(0.05)
    assert engine.taken == 0
    allowed[0] = True
    while not engine.taken:
        stop.wait(0.005)
    stop.set()
    running.join()
    assert trainer.error is None


def test_the_bytes_of_a_day_are_counted_across_restarts_and_start_again_at_midnight(tmp_path: Path) -> None:
    now, file = [10 * DAY_S - 100], tmp_path / "bytes.json"
    daily = DailyBytes(file, 1000.0, clock=lambda: now[0])
    daily.add(600)
    daily.check()
    daily.save()
    again = DailyBytes(file, 1000.0, clock=lambda: now[0])
    assert again.used_bytes == 600
    again.add(400)
    assert again.is_used_up
    with pytest.raises(FieldError, match=r"the limit of 0.001 MB per day is reached"):
        again.check()
    again.save()
    now[0] += 200
    assert not again.is_used_up
    assert DailyBytes(file, 1000.0, clock=lambda: now[0]).used_bytes == 0
    file.write_text("broken")
    assert DailyBytes(file, 1000.0).used_bytes == 0


def test_a_device_whose_bytes_are_used_up_waits_and_continues_the_next_day(tmp_path: Path) -> None:
    site, now = Site(tmp_path), [DAY_S]
    train(site.outbox, 1, 1)
    exchanger = site.exchanger(Told())
    daily = DailyBytes(tmp_path / "bytes.json", 900.0, clock=lambda: now[0])
    exchanger._radio = Radio(terms=exchanger._radio.terms, daily=daily)

    async def story() -> None:
        running = asyncio.ensure_future(exchanger.run(threading.Event()))
        await asyncio.sleep(0.1)
        assert not running.done()
        messages = len(site.wire.asked)
        await asyncio.sleep(0.05)
        assert len(site.wire.asked) == messages
        daily._limit_bytes = 1e6
        now[0] += DAY_S
        await running

    finish(story(), 20)
    assert site.outbox.progress.finished_round == 1
    assert site.wire.intake.counts[0].repeated == 0


def test_the_pages_of_a_device_tell_health_readiness_and_figures(tmp_path: Path) -> None:
    connected = [False]
    pages = device_pages(open_outbox(tmp_path), DailyBytes(tmp_path / "bytes.json"), None, lambda: connected[0])

    async def codes() -> list[int]:
        return [(await pages[path]()).code for path in ("/healthz", "/readyz", "/metrics")]

    assert finish(codes()) == [200, 503, 200]
    connected[0] = True
    assert finish(codes()) == [200, 200, 200]

    async def metrics() -> str:
        return (await pages["/metrics"]()).text

    assert "wayfare_broker_up 1.0" in finish(metrics())
