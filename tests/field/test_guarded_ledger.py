"""Poison in the field: the guard bounds it, and its decisions are replayed exactly."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import torch

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, NAMES, aggregation, open_ledger
from tests.field.test_ledger import chunks_of, deliver
from wayfare.field.runtime.ledger import FILE, Ledger
from wayfare.field.runtime.messages import Chunk
from wayfare.field.runtime.orders import place
from wayfare.methods.guard import Guard
from wayfare.methods.servers import Add
from wayfare.methods.states import same_state
from wayfare.sparsify import Sparse


def guarded(folder: Path) -> Ledger:
    return open_ledger(folder, rule=aggregation(Add(), guard=Guard()))


def poison(number: int, value: float = 9_999.0) -> bytes:
    entries = Sparse(torch.arange(ENTRIES), torch.full((ENTRIES,), value))
    return Chunk(number, 0, 1, number, number - 1, 0, 0.0, entries).packed(LAYOUT)


def test_an_update_of_9999s_does_not_move_the_model_and_its_device_is_quarantined(tmp_path: Path) -> None:
    ledger = guarded(tmp_path)
    for number in (1, 2):
        for device in range(3):
            deliver(ledger, device, chunks_of(10 * number + device, number=number, round_=number))
    before = ledger.model
    for number in (3, 4, 5):
        deliver(ledger, 2, [poison(number)])
        assert torch.equal(ledger.model, before)
    assert list(ledger.state.guard_state["quarantined"]) == ["2"]
    deliver(ledger, 0, chunks_of(33, number=3, round_=3))
    assert not torch.equal(ledger.model, before)
    replayed = ledger.replay()
    assert torch.equal(replayed.model, ledger.model)
    assert same_state(replayed.guard_state, ledger.state.guard_state)


def test_a_first_update_of_9999s_does_not_move_the_model(tmp_path: Path) -> None:
    ledger = guarded(tmp_path)
    deliver(ledger, 2, [poison(1)])
    assert torch.equal(ledger.model, INITIAL)
    assert ledger.version == 1


def test_the_guard_resumes_from_the_model_file(tmp_path: Path) -> None:
    ledger = guarded(tmp_path)
    for device in range(3):
        deliver(ledger, device, chunks_of(device))
    ledger.save_model()
    state = ledger.state.guard_state
    ledger.close()
    again = guarded(tmp_path)
    assert same_state(again.state.guard_state, state)
    assert set(state["usual"]) == {"0", "1", "2"}


def test_a_guard_judges_whole_updates(tmp_path: Path) -> None:
    ledger, chunks = guarded(tmp_path), chunks_of(1)
    deliver(ledger, 0, chunks[:-1])
    assert ledger.version == 0
    deliver(ledger, 0, chunks[-1:])
    assert ledger.version == 1


def test_a_ledger_that_began_without_directions_goes_on_without_them_until_ordered(tmp_path: Path) -> None:
    """Otherwise its replay would differ from its model."""
    before = {"fleet": "a", "replay": {"guard": repr(Guard(directions=False))}}
    now = {"fleet": "a", "replay": {"guard": repr(Guard())}}

    def opened(guard: Guard, identity: dict[str, object]) -> Ledger:
        return Ledger(
            tmp_path, INITIAL, layout=LAYOUT, aggregation=aggregation(guard=guard), identity=identity, names=NAMES
        )

    ledger = opened(Guard(directions=False), before)
    deliver(ledger, 0, chunks_of(1))
    ledger.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        old = json.dumps(before).replace(", directions=False", "")
        connection.execute("UPDATE facts SET value = ? WHERE name = 'identity'", (old,))
        connection.execute("PRAGMA user_version = 7")
    for again in (1, 2):
        ledger = opened(Guard(), now)
        deliver(ledger, 1, chunks_of(2, number=again))
        assert not ledger.state.guard_state["directions"]
        assert torch.equal(ledger.replay().model, ledger.model)
        ledger.close()
    ledger = opened(Guard(), now)
    place(tmp_path / FILE, "set", {"guard.directions": True})
    ledger.obey()
    deliver(ledger, 2, chunks_of(3))
    assert list(ledger.state.guard_state["directions"]) == ["2"]
    assert same_state(ledger.replay().guard_state, ledger.state.guard_state)
