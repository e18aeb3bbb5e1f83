"""What a ledger says of rounds, versions and updates, asked one by one."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, aggregation, open_ledger
from wayfare.codec.errors import WireError
from wayfare.errors import InputError
from wayfare.field.runtime.ledger import Key, Ledger
from wayfare.field.runtime.messages import Chunk
from wayfare.field.runtime.rules import Limits
from wayfare.methods.servers import Mix, Optimise
from wayfare.sparsify import Sparse


def piece(
    number: int,
    place: int,
    of: int,
    *,
    round_: int = 1,
    first: int | None = None,
    value: float = 3.0,
    spent: float = 0.0,
) -> bytes:
    """One entry, in a chunk of its own."""
    entry = torch.tensor([place if first is None else first])
    return Chunk(
        update=number,
        chunk=place,
        chunks=of,
        round=round_,
        received_round=0,
        base_version=0,
        spent_joules=spent,
        entries=Sparse(entry, torch.tensor([value])),
    ).packed(LAYOUT)


def test_the_queue_is_told_by_round(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for device, round_ in ((0, 4), (1, 5), (2, 4)):
        ledger.record(device, piece(1, 0, 1, round_=round_))
    assert ledger.queued(4) == ledger.due(4) == [Key(0, 1, 0), Key(2, 1, 0)]
    assert ledger.queued(5) == [Key(1, 1, 0)]
    assert ledger.queued(6) == []
    assert len(ledger.queued()) == len(ledger.due()) == 3


def test_a_rule_that_takes_no_pieces_waits_for_the_rest(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=aggregation(Optimise()))
    ledger.record(0, piece(1, 0, 2))
    ledger.record(1, piece(1, 0, 1))
    assert ledger.due() == [Key(1, 1, 0)]
    ledger.record(0, piece(1, 1, 2))
    assert sorted(ledger.due()) == [Key(0, 1, 0), Key(0, 1, 1), Key(1, 1, 0)]
    ledger.record(2, piece(1, 0, 2))
    ledger.seal(2, 1)
    assert Key(2, 1, 0) in ledger.due()


def test_versions_are_known_by_the_rounds_they_hold(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert (ledger.version, ledger.next_round) == (0, 1)
    ledger.record(0, piece(1, 0, 1, round_=2))
    ledger.apply([], next_round=2)
    assert (ledger.version, ledger.next_round) == (0, 2)
    ledger.apply(ledger.queued(2), next_round=3)
    assert (ledger.version, ledger.next_round) == (1, 3)
    ledger.apply([])
    assert (ledger.version, ledger.next_round) == (1, 3)
    ledger.record(1, piece(1, 0, 1, round_=7))
    ledger.apply(ledger.queued(), next_round=8)
    assert (ledger.version, ledger.next_round) == (2, 8)
    assert [ledger.version_after(round_) for round_ in (1, 2, 3, 7, 8)] == [0, 1, None, 2, None]
    assert [ledger.version_before(round_) for round_ in (1, 2, 3, 7, 8)] == [0, 0, 1, 1, 2]
    ledger.record(2, piece(1, 0, 1))
    ledger.apply(ledger.queued())
    assert (ledger.version, ledger.next_round) == (3, 9)
    again = _reopened(ledger, tmp_path)
    assert (again.version, again.next_round, again.queued()) == (3, 9, [])
    assert again.model[0] == ledger.model[0] == pytest.approx(float(INITIAL[0]) - 3 * 3 / 3)
    assert torch.equal(again.replay().model, ledger.model)


def _reopened(ledger: Ledger, folder: Path) -> Ledger:
    ledger.close()
    return open_ledger(folder)


def test_models_of_versions_are_those_after_their_chunks(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in range(1, 8):
        ledger.record(0, piece(number, 0, 1, first=number))
        ledger.apply(ledger.queued())
        if number == 3:
            ledger.save_model()
    ledger = _reopened(ledger, tmp_path)
    for version in (7, 0, 2, 3, 4, 6):
        changed = (ledger.model_at(version) != INITIAL).nonzero().flatten().tolist()
        assert changed == list(range(1, version + 1))
    for older, newer in ((0, 7), (3, 6), (6, 6)):
        assert np.flatnonzero(ledger.changed_between(older, newer)).tolist() == list(range(older + 1, newer + 1))


def test_changes_between_versions_long_past_are_those_since_the_older(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in range(1, 8):
        ledger.record(0, piece(number, 0, 1, first=number))
        ledger.apply(ledger.queued())
    assert np.flatnonzero(ledger.changed_between(1, 2)).tolist() == [2, 3, 4, 5, 6, 7]
    assert np.flatnonzero(ledger.changed_between(6, 7)).tolist() == [7]


def test_the_standing_of_an_update(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.standing(0, None) == (1, [], False)
    assert ledger.standing(0, 1) == (1, [], False)
    ledger.record(0, piece(1, 1, 3))
    assert ledger.standing(0, 1) == (2, [1], False)
    assert not ledger.is_delivered(0, 1)
    ledger.record(0, piece(1, 0, 3))
    ledger.record(0, piece(1, 2, 3))
    assert ledger.standing(0, 1) == (2, [0, 1, 2], True)
    assert ledger.standing(0, None) == (2, [], False)
    assert ledger.is_delivered(0, 1)
    assert not ledger.is_delivered(0, 2)
    assert ledger.standing(1, 1) == (1, [], False)


def test_an_update_is_sealed_once_and_in_its_turn(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(0, piece(1, 0, 2, spent=2.0))
    with pytest.raises(WireError, match="cannot seal update 2 while update 1 is open"):
        ledger.seal(0, 2)
    ledger.seal(0, 1)
    ledger.seal(0, 1)
    assert ledger.standing(0, 1) == (2, [0], True)
    ledger.seal(0, 4)
    assert ledger.standing(0, 4) == (5, [], True)
    assert ledger.spent_joules() == [2.0, 0.0, 0.0]


def test_a_device_that_lost_its_past_begins_with_nothing_spent(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(0, piece(1, 0, 2, spent=2.0))
    ledger.record(1, piece(1, 0, 2, spent=3.0))
    ledger.reset_device(0)
    again = _reopened(ledger, tmp_path)
    for at in (ledger, again):
        assert at.spent_joules() == [0.0, 3.0, 0.0]
        assert at.is_delivered(0, 1)
        assert not at.is_delivered(1, 1)
    again.record(0, piece(2, 0, 1, spent=0.5))
    assert again.spent_joules() == [0.5, 3.0, 0.0]


def test_a_part_of_a_model_is_in_no_version(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=aggregation(Mix()))
    ledger.record(0, piece(1, 0, 2))
    ledger.record(1, piece(1, 0, 2))
    ledger.seal(0, 1)
    assert ledger.queued() == [Key(1, 1, 0)]
    # Files of ledgers have 0 for the version of what is in none.
    assert ledger._all("SELECT device, version FROM applied") == [(0, 0)]
    assert (sorted(ledger.recorded()), ledger.applied()) == ([Key(0, 1, 0), Key(1, 1, 0)], {})
    whole = Chunk(
        update=1,
        chunk=1,
        chunks=2,
        round=1,
        received_round=0,
        base_version=0,
        spent_joules=0.0,
        entries=Sparse(torch.arange(1, ENTRIES), INITIAL[1:]),
    )
    with pytest.raises(WireError, match=f"the model has {ENTRIES - 1} entries, expected {ENTRIES}"):
        ledger.record(1, replace(whole, entries=Sparse(torch.arange(2, ENTRIES), INITIAL[2:])).packed(LAYOUT))
    ledger.record(1, whole.packed(LAYOUT))
    assert sorted(ledger.due()) == [Key(1, 1, 0), Key(1, 1, 1)]
    ledger.apply(ledger.due())
    assert sorted(ledger.applied()) == [Key(1, 1, 0), Key(1, 1, 1)]


def test_what_a_device_delivered_is_a_sum_before_any_clipping(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Limits(clip_norm=5.0))
    ledger.record(0, piece(1, 0, 2, value=3.0))
    ledger.record(0, piece(1, 1, 2, value=8.0))
    ledger.record(0, piece(2, 1, 2, value=4.0))
    ledger.record(1, piece(1, 2, 3, value=1.0))
    assert ledger.delivered(0)[:3].tolist() == [3.0, 12.0, 0.0]
    assert ledger.delivered(1)[:3].tolist() == [0.0, 0.0, 1.0]
    # 3 leaves room for 4 of the 8; the next update begins anew.
    ledger.apply(ledger.queued())
    moved = 3 * (INITIAL - ledger.model)
    assert moved[:3].tolist() == pytest.approx([3.0, 4.0 + 4.0, 1.0], rel=1e-4)


def test_exchanges_that_are_over_are_told_by_round(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for device, round_ in ((0, 4), (2, 4), (1, 5), (0, 4)):
        ledger.finish(device, round_)
    assert [ledger.finished(round_) for round_ in (3, 4, 5)] == [set(), {0, 2}, {1}]


def test_two_model_files_are_kept_and_none_is_written_twice(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.save_model()
    assert list(tmp_path.glob("model-*.npz")) == []
    for number in range(1, 5):
        ledger.record(0, piece(number, 0, 1))
        ledger.apply(ledger.queued())
        ledger.save_model()
    files = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("model-*.npz")}
    assert len(files) == 2
    ledger.save_model()
    assert {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("model-*.npz")} == files
    for file in tmp_path.glob("model-*.npz"):
        file.unlink()
    # A round that is over without a version is worth a file, too; one that somebody deleted is not missed.
    ledger.apply([], next_round=9)
    ledger.save_model()
    ledger.record(0, piece(5, 0, 1))
    ledger.apply(ledger.queued(), next_round=9 + 1)
    ledger.save_model()
    ledger.apply([], next_round=11)
    assert _reopened(ledger, tmp_path).next_round == 11


def test_mixed_models_cannot_be_clipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"clip_norm = 2\.0: not allowed"):
        open_ledger(tmp_path, Limits(clip_norm=2.0), aggregation(Mix()))
    open_ledger(tmp_path, Limits(), aggregation(Mix()))


def test_a_failed_batch_leaves_memory_as_the_disk_has_it(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.record(0, piece(1, 0, 3))

    def batch() -> None:
        with ledger.transaction():
            ledger.record(0, piece(1, 1, 3))
            ledger.apply(ledger.queued())
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        batch()
    assert (ledger.version, ledger.queued(), ledger.standing(0, 1)) == (0, [Key(0, 1, 0)], (2, [0], False))
    # What came before is still known to have come.
    with pytest.raises(WireError, match="an entry appears twice"):
        ledger.record(0, piece(1, 2, 3, first=0))


def test_a_ledger_has_format_9(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (9,)
