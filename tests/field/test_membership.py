"""Devices join, leave and return while the fleet runs, and only active ones count."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.field.parts import (
    INITIAL,
    LAYOUT,
    MIXING,
    NAMES,
    aggregation,
    noise,
    open_ledger,
    open_outbox,
    train,
)
from tests.field.test_ledger import chunks_of, deliver
from tests.field.without_broker import Site
from wayfare.codec.errors import WireError
from wayfare.errors import InputError, RunFolderError
from wayfare.field.rig.audit import as_format_5
from wayfare.field.runtime.aggregation import Aggregation
from wayfare.field.runtime.ledger import FILE, Ledger
from wayfare.field.runtime.membership import DAY_S, Membership
from wayfare.field.runtime.messages import Ask
from wayfare.field.runtime.rules import Latest
from wayfare.field.runtime.work import Work
from wayfare.methods.servers import Add
from wayfare.scenario import Scenario, load
from wayfare.server import Senders


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def counting(clock: Clock, **rules: Any) -> Aggregation:
    senders = Senders(samples=None, learning_rate=0.1)
    return replace(aggregation(Add()), senders=senders, membership=Membership(clock=clock, **rules))


def moved(ledger: Ledger, device: int, seed: int, number: int = 1) -> float:
    """How far an upload moves the model, as a share of the upload."""
    before = ledger.model
    deliver(ledger, device, chunks_of(seed, number=number))
    sent = noise(seed, 0.1)
    step = before - ledger.model
    return float((step / sent)[step != 0].median())


def test_only_devices_that_delivered_lately_count_and_spare_names_cost_nothing(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, rule=counting(clock, active_days=7.0))
    assert ledger.roster.names == list(NAMES)
    assert moved(ledger, 0, seed=1) == pytest.approx(1.0)
    assert moved(ledger, 1, seed=2) == pytest.approx(1 / 2)
    clock.now_s += 8 * DAY_S
    assert ledger.roster.active_devices == 1
    # The one that returns counts, the other does not any more.
    assert moved(ledger, 0, seed=3, number=2) == pytest.approx(1.0)


def test_a_device_that_the_server_was_not_started_with_joins_and_the_replay_is_exact(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, rule=counting(clock))
    deliver(ledger, 0, chunks_of(1))
    assert ledger.roster.number_of("bus-9") == 3
    assert ledger.roster.number_of("bus-9") == 3
    deliver(ledger, 3, chunks_of(2))
    clock.now_s += 100 * DAY_S
    # Who is active today does not change what was counted then.
    assert torch.equal(ledger.replay().model, ledger.model)
    model = ledger.model
    ledger.close()
    again = open_ledger(tmp_path, rule=counting(clock))
    assert torch.equal(again.model, model)
    assert again.roster.names == [*NAMES, "bus-9"]


def test_a_lower_bound_of_the_devices_limits_the_first_uploads(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=counting(Clock(), least_devices=10))
    assert moved(ledger, 0, seed=1) == pytest.approx(1 / 10)


def test_weights_by_samples_are_shares_of_the_active_devices_and_claims_are_limited(tmp_path: Path) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, rule=counting(clock, by_samples=True))
    for device, samples in enumerate((100, 300)):
        ledger.roster.hold(device, samples)
        deliver(ledger, device, chunks_of(device))
    # N / N times samples over their mean: 300 / 200 / 2.
    assert moved(ledger, 1, seed=5, number=2) == pytest.approx(0.75)
    assert torch.equal(ledger.replay().model, ledger.model)
    membership, honest = Membership(by_samples=True), [Latest(samples=100)] * 9
    boaster = Latest(samples=10**9)
    assert membership.weight(boaster, [*honest, boaster], None) == pytest.approx(1000 / (1900 / 10))
    assert membership.weight(Latest(), honest, None) == 1.0


def test_an_update_against_an_old_model_is_discounted_and_in_the_end_rejected(tmp_path: Path) -> None:
    clock = Clock()
    rule = counting(clock, active_days=1000.0, discount_days=5.0, outdated_days=30.0)
    ledger = open_ledger(tmp_path, rule=rule)
    deliver(ledger, 0, chunks_of(1))
    clock.now_s += 20 * DAY_S
    # One of two devices, and its base was superseded 20 days ago.
    assert moved(ledger, 1, seed=2) == pytest.approx(5 / 20 / 2)
    assert torch.equal(ledger.replay().model, ledger.model)
    clock.now_s += 11 * DAY_S
    with pytest.raises(WireError, match="base_version = 0: superseded more than 30 days ago"):
        ledger.record(2, chunks_of(3)[0])


def test_models_cannot_be_discounted(tmp_path: Path) -> None:
    rule = replace(counting(Clock(), discount_days=5.0), rule=MIXING.server)
    with pytest.raises(InputError, match=r"discount_days = 5\.0: not allowed"):
        open_ledger(tmp_path, rule=rule)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"active_days": 0.0}, "active_days = 0.0: must be above 0"),
        ({"outdated_days": -1.0}, "outdated_days = -1.0: must be above 0"),
        ({"least_devices": 0}, "least_devices = 0: must be at least 1"),
    ],
)
def test_invalid_rules_are_named(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Membership(**rules)


def with_membership(site: Site, clock: Clock, **rules: Any) -> None:
    """Let the server of a site count active devices."""
    ledger = site.wire.intake.ledger
    ledger._history.versions.aggregation = counting(clock, **rules)
    ledger.roster._membership = ledger._history.aggregation.membership


def test_a_device_that_joins_starts_from_the_current_model(tmp_path: Path) -> None:
    site, clock = Site(tmp_path), Clock()
    with_membership(site, clock)
    deliver(site.wire.intake.ledger, 1, chunks_of(7))
    clock.now_s += 7200.0
    train(site.outbox, 1, 1)
    site.exchange()
    # What it learned from the initial model is gone, and it has the model of version 1.
    assert site.wire.counts()["chunk"] == 0
    assert site.outbox.progress.version == 1
    assert torch.equal(site.outbox.local, site.wire.intake.ledger.model)
    train(site.outbox, 2, site.outbox.progress.cut_round + 1)
    site.exchange()
    assert site.outbox.progress.version == site.wire.intake.ledger.version > 1


def test_a_device_that_was_away_for_a_month_starts_over(tmp_path: Path) -> None:
    site, clock = Site(tmp_path), Clock()
    with_membership(site, clock, outdated_days=30.0)
    ledger = site.wire.intake.ledger
    train(site.outbox, 1, 1)
    site.exchange()
    assert site.outbox.state.memory.any()
    version = site.outbox.progress.version
    deliver(ledger, 1, chunks_of(7))
    train(site.outbox, 2, 2)
    clock.now_s += 31 * DAY_S
    deliver(ledger, 1, [])
    before = site.wire.counts()["chunk"]
    site.exchange()
    assert site.wire.counts()["chunk"] == before
    assert not site.outbox.state.memory.any()
    assert site.outbox.progress.version == ledger.version > version
    assert torch.equal(site.outbox.local, ledger.model)
    # The account of everything learned balances without what was discarded.
    learned = torch.from_numpy(site.outbox.learned)
    assert torch.allclose(learned, torch.from_numpy(ledger.delivered(0)), atol=1e-6)


def test_a_server_keeps_the_number_of_samples_that_a_device_reports(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.wire.intake.ask(0, Ask(samples=41).packed())
    site.wire.intake.ledger.close()
    assert open_ledger(tmp_path / "mes").roster.devices[0].samples == 41


def as_format_2(folder: Path) -> None:
    """The ledger as it was before devices had names."""
    as_format_5(folder / FILE)
    with sqlite3.connect(folder / FILE) as connection:
        connection.executescript("DROP TABLE orders; DROP TABLE contacts")
        connection.execute("DROP INDEX rounds_by_version")
        for table, columns in (
            ("devices", ("name", "delivered_s", "samples")),
            ("chunks", ("weight", "samples")),
            ("rounds", ("devices", "made_s")),
        ):
            for column in columns:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("UPDATE facts SET value = '\"0123\"' WHERE name = 'identity'")
        connection.execute("PRAGMA user_version = 2")


def test_a_ledger_of_format_2_is_migrated_with_the_names_of_its_devices(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    deliver(ledger, 0, chunks_of(1))
    deliver(ledger, 2, chunks_of(2))
    model = ledger.model
    ledger.close()
    as_format_2(tmp_path)
    ledger = open_ledger(tmp_path, rule=counting(Clock()))
    assert ledger.roster.names == list(NAMES)
    assert torch.equal(ledger.model, model)
    assert torch.equal(ledger.replay().model, model)
    deliver(ledger, 0, chunks_of(3, number=2))
    ledger.close()
    # From now on it belongs to this fleet.
    with pytest.raises(RunFolderError, match="belongs to other work: fleet: 'fleet' -> 'other'"):
        Ledger(tmp_path, INITIAL, layout=LAYOUT, aggregation=aggregation(), identity={"fleet": "other"})


def test_a_store_of_format_2_is_migrated(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    local = outbox.local
    outbox.close()
    with sqlite3.connect(tmp_path / "device.sqlite") as connection:
        connection.execute("UPDATE facts SET value = '\"0123\"' WHERE name = 'identity'")
        connection.execute("PRAGMA user_version = 2")
    assert torch.equal(open_outbox(tmp_path).local, local)
    with sqlite3.connect(tmp_path / "device.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_settings_that_change_nothing_of_the_model_or_method_are_accepted() -> None:
    works = [
        Work(scenario=load("fashion-small", changes))
        for changes in (
            [],
            ["learning.evaluate_every_rounds=3"],
            ["fleet.devices=200"],
            ["learning.learning_rate=0.2"],
            ["rounds=7"],
        )
    ]
    assert len({str(work.identity("fleet", "bus-1")) for work in works}) == 1
    assert len({str(work.server_identity("fleet", "mes")) for work in works}) == 1
    assert Work(scenario=Scenario(), seed=1).server_identity("f", "mes") != works[0].server_identity("f", "mes")


def test_neither_side_draws_the_simulated_world_without_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.field.test_parity import bundle_of
    from wayfare.field.runtime import work as module
    from wayfare.field.runtime.device import DeviceOptions, make_guide, open_store
    from wayfare.field.runtime.mes import ServerOptions, open_intake

    def drawn(*_: object) -> None:
        raise AssertionError("the simulated world was drawn")

    monkeypatch.setattr(module, "draw_world", drawn)
    work = Work(scenario=load("fashion-small", ["fleet.devices=200", "rounds=100000"]))
    open_intake(bundle_of("mes"), work, ServerOptions(state=tmp_path / "mes")).ledger.close()
    options = DeviceOptions(state=tmp_path / "bus-1")
    open_store(bundle_of("bus-1"), 7, work, options).close()
    make_guide(7, work, options)
