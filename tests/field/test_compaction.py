"""Months of life: old chunks become a snapshot, orders are replayed, and nothing counts twice."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, aggregation, dies_at, open_ledger
from tests.field.test_ledger import chunks_of, deliver, everything
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import InputError, RunFolderError
from wayfare.field.rig.audit import as_format_5
from wayfare.field.runtime import orders
from wayfare.field.runtime.compaction import Window, shrink
from wayfare.field.runtime.ledger import FILE, Key, Ledger
from wayfare.field.runtime.messages import Chunk
from wayfare.field.runtime.model_encoding import model_digest
from wayfare.methods.guard import Guard
from wayfare.methods.servers import Optimise
from wayfare.methods.states import same_state
from wayfare.scenario.server import Server
from wayfare.sparsify import Sparse

NOTHING = Window(days=0, bytes=0)
MOMENTUM = aggregation(Optimise(Server(optimizer="momentum")), average_rounds=5, guard=Guard())


def lived(folder: Path, updates: int = 5, rule: object = MOMENTUM) -> Ledger:
    ledger = open_ledger(folder, rule=rule)  # type: ignore[arg-type]
    for number in range(1, updates + 1):
        for device in range(3):
            deliver(ledger, device, chunks_of(10 * number + device, number=number, round_=number))
    return ledger


def replays(ledger: Ledger) -> None:
    replayed = ledger.replay()
    assert torch.equal(replayed.model, ledger.model)
    assert torch.equal(replayed.judged, ledger.state.judged)
    assert same_state(replayed.rule_state, ledger.state.rule_state)
    assert same_state(replayed.guard_state, ledger.state.guard_state)


def test_a_compacted_ledger_replays_to_the_same_model_and_goes_on(tmp_path: Path) -> None:
    plain, ledger = lived(tmp_path / "plain"), lived(tmp_path / "compacted")
    found = ledger.compact(NOTHING)
    assert (found.base_version, found.chunks > 50, found.bytes > 10_000) == (15, True, True)
    replays(ledger)
    for place in (plain, ledger):
        for device in range(3):
            deliver(place, device, chunks_of(60 + device, number=6, round_=6))
    assert torch.equal(plain.model, ledger.model)
    replays(ledger)
    ledger.close()
    again = open_ledger(tmp_path / "compacted", rule=MOMENTUM)
    assert torch.equal(again.model, plain.model)
    replays(again)


def test_versions_within_the_window_stay_and_older_ones_are_named(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    models = {version: ledger.model_at(version) for version in range(16)}
    query = "SELECT version, sum(length(data)) FROM chunks JOIN applied USING (device, number, chunk) GROUP BY version"
    sizes = dict(ledger._all(query))
    found = ledger.compact(Window(days=0, bytes=sum(sizes[version] for version in (13, 14, 15))))
    assert found.base_version == 15
    ledger = lived(tmp_path / "days")
    ledger._database.connection.execute("UPDATE rounds SET made_s = made_s - 864000 WHERE version <= 9")
    assert ledger.compact(Window(days=5)).base_version == 9
    assert ledger.compact(Window(days=5)).chunks == 0
    for version in range(9, 16):
        assert torch.equal(ledger.model_at(version), models[version])
    with pytest.raises(InputError, match="version = 8: must be 9 to 15"):
        ledger.model_at(8)


def test_the_size_of_the_window_bounds_what_is_kept(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    size = ledger._all("SELECT sum(length(data)) FROM chunks")[0][0]
    ledger.compact(Window(days=100, bytes=size // 2))
    assert 0.3 * size < ledger._all("SELECT sum(length(data)) FROM chunks")[0][0] <= size // 2
    replays(ledger)


def test_a_device_that_returns_learns_what_was_recorded_before_a_compaction(tmp_path: Path) -> None:
    ledger = lived(tmp_path, updates=2)
    chunks = chunks_of(99, number=3, round_=3)
    deliver(ledger, 0, chunks)
    before = {device: ledger.standing(device, 3 if device == 0 else 2) for device in range(3)}
    ledger.compact(NOTHING)
    assert {device: ledger.standing(device, 3 if device == 0 else 2) for device in range(3)} == before
    # What arrives again is known, and an earlier update is closed.
    model = ledger.model
    assert deliver(ledger, 0, chunks) == [False] * len(chunks)
    with pytest.raises(WireError, match="closed"):
        ledger.record(0, chunks_of(10, number=1)[0])
    assert ledger.model is model


def test_an_open_update_keeps_its_chunks(tmp_path: Path) -> None:
    ledger, chunks = lived(tmp_path, updates=2, rule=aggregation()), chunks_of(99, number=3, round_=3)
    deliver(ledger, 0, chunks[:2])
    ledger.compact(NOTHING)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert deliver(ledger, 0, chunks) == [False, False] + [True] * (len(chunks) - 2)
    assert torch.equal(ledger.replay().model, ledger.model)


def test_power_that_fails_at_any_statement_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "one", updates=2)
    ledger.save_model()
    model = ledger.model
    ledger.close()
    for statement in range(1, 40):
        copy = tmp_path / f"copy-{statement}"
        shutil.copytree(tmp_path / "one", copy)
        victim = open_ledger(copy, rule=MOMENTUM)
        killed = dies_at(statement, victim._database.connection, lambda: victim.compact(NOTHING))  # noqa: B023
        victim.close()
        left = open_ledger(copy, rule=MOMENTUM)
        assert torch.equal(left.model, model)
        replays(left)
        left.compact(NOTHING)
        replays(left)
        left.close()
        if not killed:
            break
    assert statement > 8


def test_a_damaged_base_is_reported(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    ledger.compact(NOTHING)
    ledger.close()
    file = tmp_path / "model-15.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(RunFolderError, match="restore a backup"):
        open_ledger(tmp_path, rule=MOMENTUM)


def test_the_disk_of_a_server_stays_below_ten_models_and_the_window(tmp_path: Path) -> None:
    entries, window = 30_000, 400_000
    layout = Layout.of("large", [(entries,)], statistics=0)
    ledger = Ledger(
        tmp_path,
        torch.zeros(entries),
        layout=layout,
        aggregation=replace(aggregation(guard=Guard()), terms=replace(aggregation().terms, statistics=0)),
        identity={"name": "large"},
        names=["a", "b", "c"],
    )
    most = 0
    ledger._database.connection.execute("PRAGMA wal_autocheckpoint = 10")
    for number in range(1, 41):
        values = torch.randn(entries, generator=torch.Generator().manual_seed(number)) * 0.01
        chunk = Chunk(number, 0, 1, number, number - 1, 0, 0.0, Sparse(torch.arange(entries), values))
        deliver(ledger, number % 3, [chunk.packed(layout)])
        ledger.save_model()
        ledger.compact(Window(days=7, bytes=window))
        if number % 10 == 0:
            shrink(ledger._database)
        most = max(most, sum(file.stat().st_size for file in tmp_path.rglob("*") if file.name != f"{FILE}-wal"))
    # Without compaction: 40 chunks of 120 kB are 4.8 MB.
    assert most < 10 * 4 * entries + window
    assert torch.equal(ledger.replay().model, ledger.model)


def test_a_rollback_makes_a_version_with_the_old_model_that_a_replay_repeats(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    old, state = ledger.model_at(4), ledger._history.snapshot_at(4).state
    number = orders.place(tmp_path / FILE, "rollback", {"version": 4})
    ledger.obey()
    assert orders.outcome(tmp_path / FILE, number, 0) == "done: version 16"
    assert ledger.version == 16
    assert torch.equal(ledger.model, old)
    assert same_state(ledger.state.rule_state, state.rule_state)
    replays(ledger)
    for device in range(3):
        deliver(ledger, device, chunks_of(60 + device, number=6, round_=6))
    replays(ledger)
    # A delta from the version before the rollback leads to the same bytes.
    changed = torch.from_numpy(ledger.changed_between(15, 19))
    assert torch.equal(torch.where(changed, ledger.model, ledger.model_at(15)), ledger.model)
    before = everything(ledger)
    ledger.close()
    again = open_ledger(tmp_path, rule=MOMENTUM)
    assert everything(again) == before
    # Compaction never keeps a rollback without its target.
    again._database.connection.execute("UPDATE rounds SET made_s = 0 WHERE version <= 10")
    assert again.compact(Window(days=1)).base_version == 16
    replays(again)


def test_orders_that_make_no_sense_are_rejected_and_change_nothing(tmp_path: Path) -> None:
    ledger = lived(tmp_path, updates=1)
    before = everything(ledger)
    for kind, content, reason in (
        ("rollback", {"version": 99}, "version = 99: must be 0 to 3"),
        ("rollback", {}, "rejected"),
        ("pardon", {"device": 1, "name": "bus-2"}, "is not in quarantine"),
        ("set", {"guard.clip": -1.0}, "guard.clip = -1.0: must be a finite number above 0"),
        ("set", {"guard.colour": 1.0}, "choose from clip, share"),
        ("set", {"server.optimizer": "adam"}, "kind of the server's state"),
        ("set", {"server.step": "fast"}, r"server\.step"),
        ("set", {"radio.bandwidth_hz": 1.0}, "or start with server, or with guard"),
        ("dance", {}, "unknown"),
    ):
        number = orders.place(tmp_path / FILE, kind, content)
        ledger.obey()
        found = orders.outcome(tmp_path / FILE, number, 0)
        assert found is not None
        assert found.startswith("rejected")
        assert reason.replace("\\", "") in found
    assert everything(ledger) == before


def test_settings_hold_from_the_version_that_records_them(tmp_path: Path) -> None:
    ledger = lived(tmp_path, updates=3)
    orders.place(tmp_path / FILE, "set", {"server.step": 0.05, "guard.clip": 1.5})
    ledger.obey()
    assert ledger._history.aggregation.guard == Guard(clip=1.5)
    for device in range(3):
        deliver(ledger, device, chunks_of(60 + device, number=6, round_=6))
    replays(ledger)
    ledger.compact(NOTHING)
    model = ledger.model
    ledger.close()
    again = open_ledger(tmp_path, rule=MOMENTUM)
    assert torch.equal(again.model, model)
    assert again._history.aggregation.guard == Guard(clip=1.5)
    replays(again)


def test_a_device_is_released_from_quarantine_by_an_order(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    absurd = Sparse(torch.arange(ENTRIES), torch.full((ENTRIES,), 9_999.0))
    for number in (6, 7, 8):
        deliver(ledger, 1, [Chunk(number, 0, 1, number, 0, 0, 0.0, absurd).packed(LAYOUT)])
    assert list(ledger.state.guard_state["quarantined"]) == ["1"]
    orders.place(tmp_path / FILE, "pardon", {"device": 1, "name": "bus-2"})
    ledger.obey()
    assert not ledger.state.guard_state["quarantined"]
    replays(ledger)


def test_a_ledger_of_format_5_replays_goes_on_and_is_compacted(tmp_path: Path) -> None:
    """A file of the last version with this format: six versions, and two chunks of an open update."""
    dump = Path(__file__).with_name("ledger-format-5.sql").read_text()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.executescript(dump)
    unguarded = replace(MOMENTUM, guard=None)
    ledger = open_ledger(tmp_path, rule=unguarded)
    digest = "6f6f5fec88548f9aa31a798412a915491c1da1499ddb2bbdc017ac340cf1b87e"
    assert (ledger.version, model_digest(ledger.model)) == (6, digest)
    replays(ledger)
    assert len(ledger.applied()) == len(ledger.recorded()) - 2
    assert sorted(ledger.queued()) == [Key(1, 3, 0), Key(1, 3, 1)]
    chunks, fresh = chunks_of(99, number=3, round_=3), lived(tmp_path / "fresh", updates=2, rule=unguarded)
    with sqlite3.connect(tmp_path / FILE) as connection:
        query = "SELECT data FROM chunks WHERE device = 1 AND number = 3 ORDER BY chunk"
        # A device sends the bytes in its store again, as it encoded them then.
        earlier = [data for (data,) in connection.execute(query)]
    assert deliver(ledger, 1, earlier + chunks[2:]) == [False, False] + [True] * (len(chunks) - 2)
    deliver(fresh, 1, chunks)
    assert torch.equal(ledger.model, fresh.model)
    replays(ledger)
    ledger.compact(NOTHING)
    replays(ledger)
    ledger.close()
    assert torch.equal(open_ledger(tmp_path, rule=unguarded).model, fresh.model)


def test_a_chunk_is_written_once(tmp_path: Path) -> None:
    """An update of a row would write its data again."""
    ledger, seen = open_ledger(tmp_path), list[str]()
    ledger._database.connection.set_trace_callback(seen.append)
    deliver(ledger, 0, chunks_of(1))
    ledger._database.connection.set_trace_callback(None)
    assert not [statement for statement in seen if statement.startswith("UPDATE chunks")]


def test_a_ledger_of_format_3_gets_its_table_of_orders(tmp_path: Path) -> None:
    ledger = lived(tmp_path, updates=1)
    model = ledger.model
    ledger.close()
    as_format_5(tmp_path / FILE)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.executescript("DROP TABLE orders; DROP TABLE contacts")
        connection.execute("PRAGMA user_version = 3")
    with pytest.raises(InputError, match="start the server once to migrate it"):
        orders.place(tmp_path / FILE, "rollback", {"version": 1})
    again = open_ledger(tmp_path, rule=MOMENTUM)
    assert torch.equal(again.model, model)
    orders.place(tmp_path / FILE, "rollback", {"version": 0})
    again.obey()
    assert torch.equal(again.model, INITIAL)
    with pytest.raises(InputError, match="no ledger"):
        orders.place(tmp_path / "elsewhere" / FILE, "rollback", {"version": 1})
