"""Settings of devices that the operator changes while the fleet runs, each recorded with the version it holds from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.field.parts import INITIAL, LAYOUT, LINK, Told, aggregation, open_ledger, open_outbox, train
from tests.field.test_guide import STATE, Clock
from tests.field.test_ledger import deliver
from tests.field.without_broker import Site
from wayfare.codec.errors import WireError
from wayfare.device import Terms
from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.daily import DailyUploads
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.guide import ByExperience
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import FILE, Ledger
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import Ask, Chunk, Finish, Settings
from wayfare.field.runtime.orders import outcome, place
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.rules import Limits
from wayfare.field.runtime.status import status_of
from wayfare.field.runtime.stores import Progress
from wayfare.methods import make_method
from wayfare.methods.published.scaffold import ControlVariates
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse


def ordered(ledger: Ledger, **settings: object) -> str:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    number = place(ledger.folder / FILE, "set", named)
    ledger.obey()
    return str(outcome(ledger.folder / FILE, number, 0))


def upload(update: int, base_version: int = 0, seed: int = 1) -> bytes:
    values = torch.randn(len(INITIAL), generator=torch.Generator().manual_seed(seed)) * 0.01
    entries = Sparse(torch.arange(len(INITIAL)), values)
    return Chunk(update, 0, 1, 10 * update, 10 * update - 5, base_version, 0.0, entries).packed(LAYOUT)


def test_settings_hold_from_the_version_of_their_order_on_also_after_a_restart_and_a_compaction(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    deliver(ledger, 0, [upload(1)])
    assert ordered(ledger, learning__learning_rate=0.05, device__max_local_steps=20) == "done: version 2"
    deliver(ledger, 0, [upload(2)])
    assert ordered(ledger, learning__learning_rate=1) == "done: version 4"
    expected = [
        (1, None),
        (2, Settings(learning_rate=0.05, max_local_steps=20)),
        (3, Settings(learning_rate=0.05, max_local_steps=20)),
        (4, Settings(learning_rate=1.0, max_local_steps=20)),
    ]
    for _ in range(2):
        assert [(version, ledger.aggregation.settings_at(version)) for version, _ in expected] == expected
        ledger.save_model()
        ledger.compact(Window(days=0, bytes=0))
        ledger.close()
        ledger = open_ledger(tmp_path)
    status = status_of(Intake(ledger, OnArrival(), LAYOUT), fleet="f", heard_at_s={}, began_s=0.0, broker_in_reach=True)
    assert status.settings == {"learning_rate": 1.0, "max_local_steps": 20}


def test_a_device_gets_the_settings_with_its_model(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    intake = Intake(ledger, OnArrival(), LAYOUT)
    assert intake.finish(0, Finish(round=1, have_version=0).packed()).settings is None
    ordered(ledger, learning__batch_size=8)
    assert intake.finish(0, Finish(round=1, have_version=0).packed()).settings == Settings(batch_size=8)


def test_the_reach_of_an_update_follows_the_learning_rate_of_its_model_and_replays(tmp_path: Path) -> None:
    rule = aggregation(ControlVariates())
    ledger = open_ledger(tmp_path, rule=rule)
    deliver(ledger, 0, [upload(1, seed=1)])
    ordered(ledger, learning__learning_rate=0.4)
    for device, base in ((1, 1), (2, 2)):
        deliver(ledger, device, [upload(1, base_version=base, seed=device)])
    reached = {version: [arrival.reach for arrival in ledger._history._applied_in(version)] for version in (1, 3, 4)}
    # Five steps at 0.1, the rate of the first versions, or at 0.4.
    assert reached == {1: [pytest.approx(0.5)], 3: [pytest.approx(0.5)], 4: [pytest.approx(2.0)]}
    assert torch.equal(ledger.replay().model, ledger.model)
    ledger.close()
    again = open_ledger(tmp_path, rule=rule)
    assert torch.equal(again.replay().model, again.model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning__learning_rate": 0}, "learning.learning_rate = 0.0: must be greater than 0"),
        ({"learning__learning_rate": "fast"}, "learning.learning_rate = 'fast': must be a valid number"),
        ({"learning__learning_rate": 9.0}, "learning.learning_rate = 9.0: must be at most 4: a step would overshoot"),
        ({"learning__batch_size": 2.5}, "learning.batch_size = 2.5: must be a valid integer"),
        ({"device__max_local_steps": 0}, "device.max_local_steps = 0: must be greater than or equal to 1"),
        ({"device__exchange_every_s": -1}, "device.exchange_every_s = -1.0: must be greater than or equal to 0"),
        ({"learning__task": "x"}, "learning.task = 'x': must be learning.learning_rate, learning.batch_size, device."),
    ],
)
def test_bad_settings_get_one_message_and_make_no_version(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    ledger = open_ledger(tmp_path, rule=replace(aggregation(), max_learning_rate=4.0))
    assert ordered(ledger, **settings).startswith(f"rejected: {message}")
    assert ledger.version == 0


def test_a_device_keeps_received_settings_over_a_restart(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    outbox.receive(INITIAL, 3, 1, settings={"learning_rate": 0.5})
    outbox.close()
    assert open_outbox(tmp_path).progress.settings == {"learning_rate": 0.5}


def test_a_device_follows_the_settings() -> None:
    clock = Clock()
    guide, changed = (
        ByExperience(LINK, clock=clock, max_local_steps=1000, every_s=10.0),
        Progress(settings={"max_local_steps": 5, "exchange_every_s": 60.0}),
    )
    assert guide.trains_until(Progress(), STATE) == 1000
    assert guide.trains_until(changed, STATE) == 5
    guide.exchanged()
    clock.now_s += 30
    assert guide.occasion(Progress(), STATE) is not None
    assert guide.occasion(changed, STATE) is None
    guide.wait(100)
    # A new contact does not shorten what the server demands.
    guide.in_reach()
    assert guide.occasion(Progress(), STATE) is None
    clock.now_s += 101
    assert guide.occasion(Progress(), STATE) is not None


def test_the_controller_divides_updates_by_the_learning_rate_that_made_them() -> None:
    terms = Terms(method=make_method("mads", Scenario()), link=LINK, rounds=100, norm_scale=10.0)
    radio = Radio(terms=terms, period_joules=1.0)
    assert radio.in_period(STATE, 1)[1].norm_scale == 10.0
    assert radio.in_period(STATE, 1, {"learning_rate": 0.5})[1].norm_scale == 2.0


def test_the_server_accepts_so_many_uploads_a_day_and_says_how_long_to_wait(tmp_path: Path) -> None:
    now_s = [1_000_000.0]
    rule = replace(aggregation(), membership=Membership(clock=lambda: now_s[0]))
    ledger = open_ledger(tmp_path, Limits(uploads_per_day=2), rule)
    intake = Intake(ledger, OnArrival(), LAYOUT)

    def wait_s(device: int) -> float:
        standing = intake.ask(device, Ask().packed())
        assert standing is not None
        return standing.wait_s

    for number in (1, 2):
        assert wait_s(0) == 0.0
        [(_, mark)] = intake.chunks([(0, upload(number))])
        assert mark.recorded == [0]
    left_s = 86_400 - now_s[0] % 86_400
    assert wait_s(0) == pytest.approx(left_s)
    assert wait_s(1) == 0.0
    [(_, mark)] = intake.chunks([(0, upload(3))])
    assert mark.refused == "uploads_per_day = 2: this device has none left until midnight UTC"
    # A chunk that is known is not an upload of its own.
    assert intake.chunks([(0, upload(2))])[0][1].recorded == [0]
    ledger.close()
    ledger = open_ledger(tmp_path, Limits(uploads_per_day=2), rule)
    assert ledger.roster.uploads.wait_s(0) == pytest.approx(left_s)
    ordered(ledger, device__uploads_per_day=3)
    deliver(ledger, 0, [upload(3)])
    with pytest.raises(WireError, match="uploads_per_day = 3"):
        deliver(ledger, 0, [upload(4)])
    now_s[0] += left_s
    deliver(ledger, 0, [upload(4)])
    assert ledger.roster.uploads.wait_s(0) == 0.0


def test_without_a_limit_nothing_is_counted(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    deliver(ledger, 0, [upload(1)])
    assert not ledger._all("SELECT 1 FROM facts WHERE name = 'uploads'")
    assert DailyUploads(ledger._database, lambda: 5, lambda: math.pi).wait_s(0) == 0.0


def test_a_device_without_uploads_left_sends_nothing_and_keeps_what_it_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "wayfare.field")
    site = Site(tmp_path)
    train(site.outbox, 1, 1)
    site.wire.between["ask"] = lambda seen, data: json.dumps({"next_update": 1, "version": 0, "wait_s": 90}).encode()
    guide = Told()
    guide.wait = lambda seconds: guide.exchanged()  # type: ignore[method-assign]
    site.exchange(guide)
    assert site.wire.counts() == {"ask": 1}
    assert "no upload is left today" in caplog.messages
    assert site.outbox.open_update() is None
    assert not torch.equal(site.outbox.local, site.outbox.model)


def test_the_server_shows_the_loss_that_a_device_reported(tmp_path: Path) -> None:
    intake = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT)
    intake.ask(0, Ask(loss=0.75).packed())
    intake.ask(0, Ask().packed())
    status = status_of(intake, fleet="f", heard_at_s={}, began_s=0.0, broker_in_reach=True)
    assert [device.loss for device in status.devices] == [0.75, None, None]
    assert intake.ask(0, b'{"loss": NaN}') is None
