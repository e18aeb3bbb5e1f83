"""Mass on a device is in one place at any time, whenever the power fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.parts import (
    ENTRIES,
    INITIAL,
    LAYOUT,
    METHOD,
    MIXING,
    REMEMBERING,
    cut,
    dies_at,
    noise,
    open_outbox,
    train,
    undelivered,
)
from wayfare.errors import InvariantError, RunFolderError
from wayfare.field.runtime.messages import joined, unpack
from wayfare.field.runtime.outbox import Outbox
from wayfare.methods import Method
from wayfare.methods.states import mapped, same_state


def everything(outbox: Outbox) -> tuple[object, ...]:
    state = outbox.state
    return (
        outbox.progress,
        outbox.open_update(),
        outbox.outcomes(),
        [chunk for chunk, _ in outbox.pending(outbox.progress.last_update)],
        *(vector.tolist() for vector in (state.received, state.memory, outbox.local, outbox.model)),
        (state.received_round, state.spent_joules, state.backlog_joules, state.met_s, state.experience),
        (
            state.contacts,
            *(mapped(tree, torch.Tensor.tolist) for tree in (state.memory_state, state.local_state)),
        ),
    )


def test_mass_is_kept_through_a_life(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    delivered = torch.zeros(ENTRIES, dtype=torch.float64)

    def balanced() -> None:
        assert np.allclose((undelivered(outbox) + delivered).numpy(), outbox.learned, atol=1e-5)

    def deliver(number: int, chunks: list[int]) -> None:
        for chunk, data in outbox.pending(number):
            if chunk in chunks:
                entries = unpack(data, LAYOUT).entries
                delivered.index_add_(0, entries.indices, entries.values.double())

    for round_ in range(1, 20):
        start = outbox.local
        train(outbox, round_, round_)
        balanced()
        opened = cut(outbox, round_)
        assert opened is not None
        assert opened.chunks > 2
        balanced()
        everything_there = list(range(opened.chunks))
        some = everything_there[: round_ % opened.chunks]
        deliver(opened.number, some)
        if round_ % 3 == 0:
            outbox.take_back(opened.number, some)
            balanced()
            continue
        assert not outbox.settle(opened.number, some)
        balanced()
        deliver(opened.number, everything_there)
        assert outbox.settle(opened.number, everything_there)
        # A trainer that was under way all the time brings its steps along.
        if round_ % 2:
            outbox.trained(start, start + noise(100 + round_, 0.1), round_)
        balanced()
        outbox.receive(noise(1000 + round_), round_, round_)
        balanced()
    reopened = open_outbox(tmp_path)
    assert everything(reopened) == everything(outbox)
    assert np.array_equal(reopened.learned, outbox.learned)


def test_a_model_that_nothing_was_learned_on_is_taken_as_it_is(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    opened = cut(outbox, 1)
    outbox.settle(opened.number, range(opened.chunks))
    model = noise(5)
    outbox.receive(model, 3, 1)
    assert torch.equal(outbox.local, model)
    assert torch.equal(outbox.state.received, model)
    assert outbox.progress.version == 3


STEPS: dict[str, Callable[[Outbox], object]] = {
    "train": lambda outbox: train(outbox, 7, 2),
    "cut": lambda outbox: cut(outbox, 2, method=outbox._method),
    "settle some": lambda outbox: outbox.settle(1, [0, 2]),
    "settle all": lambda outbox: outbox.settle(1, range(9)),
    "take back": lambda outbox: outbox.take_back(1, [1]),
    "receive": lambda outbox: outbox.receive(noise(9), 4, 2),
    "finish": lambda outbox: outbox.finish(2),
}
BEFORE = {"cut": (), "train": (), "settle some": ("cut",), "settle all": ("cut",), "take back": ("cut",)}


@pytest.mark.parametrize("method", [METHOD, REMEMBERING, MIXING], ids=["plain", "remembering", "mixing"])
@pytest.mark.parametrize("step", STEPS)
def test_power_that_fails_at_any_statement_leaves_all_of_a_step_or_nothing(
    step: str, method: Method, tmp_path: Path
) -> None:
    outbox = open_outbox(tmp_path, method=method)
    train(outbox, 1, 1)
    for before in BEFORE.get(step, ("cut", "settle all")):
        STEPS[before](outbox)
    untouched = everything(outbox)
    outbox.close()
    outcomes = set()
    for statement in range(1, 100):
        copy = tmp_path / f"at-{statement}"
        copy.mkdir()
        for file in tmp_path.glob("device.sqlite*"):
            (copy / file.name).write_bytes(file.read_bytes())
        victim = open_outbox(copy, method=method)
        killed = dies_at(statement, victim._database.connection, partial(STEPS[step], victim))
        # Not closed: that would write what the child has not.
        left = everything(open_outbox(copy, method=method))
        outcomes.add(left == untouched)
        if not killed:
            assert left != untouched
            break
        assert left == untouched, f"killed before statement {statement}"
    assert outcomes == {True, False}


def test_what_parts_remember_is_what_they_would_without_a_disk(tmp_path: Path) -> None:
    outbox, memory, local = open_outbox(tmp_path, method=REMEMBERING), REMEMBERING.memory, REMEMBERING.local
    remembered, learned = memory.init(INITIAL), local.init(INITIAL)
    vector = torch.zeros(ENTRIES)
    for round_ in range(1, 6):
        train(outbox, round_, round_)
        change = outbox.state.received - outbox.local
        update, remembered = memory.offer(vector, change, remembered)
        opened = cut(outbox, round_, method=REMEMBERING)
        sent = joined([unpack(data, LAYOUT).entries for _, data in outbox.pending(opened.number)])
        vector, remembered = memory.keep(update, sent, remembered)
        learned = local.delivered(learned, change)
        # The store is closed and opened again at every turn.
        outbox.close()
        outbox = open_outbox(tmp_path, method=REMEMBERING)
        rest = [unpack(data, LAYOUT).entries for _, data in outbox.pending(opened.number)][2:]
        outbox.take_back(opened.number, [0, 1])
        vector, remembered = memory.take_back(vector, joined(rest), remembered)
        outbox.receive(noise(100 + round_), round_, round_)
        learned = local.received(learned, {})
        outbox.close()
        outbox = open_outbox(tmp_path, method=REMEMBERING)
        state = outbox.state
        assert torch.equal(state.memory, vector)
        assert same_state(state.memory_state, remembered)
        assert same_state(state.local_state, learned)
    assert state.local_state["models"] == 5
    assert float(state.memory_state["by"]["returned"].norm()) > 0


def test_a_model_that_was_not_delivered_whole_leaves_all_that_was_learned(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, method=MIXING)
    train(outbox, 1, 1)
    opened = cut(outbox, 1, method=MIXING)
    sent = joined([unpack(data, LAYOUT).entries for _, data in outbox.pending(opened.number)])
    assert torch.equal(sent.values, outbox.local)
    outbox.take_back(opened.number, [0])
    assert not outbox.state.memory.any()
    # As after an upload that did not complete: the next one is about everything since the last model.
    assert torch.equal(outbox.state.received, INITIAL)
    train(outbox, 2, 2)
    opened = cut(outbox, 2, method=MIXING)
    outbox.settle(opened.number, range(opened.chunks))
    model = noise(5)
    outbox.receive(model, 1, 2)
    assert torch.equal(outbox.local, model)


def test_an_error_inside_a_step_leaves_what_is_in_memory_as_it_was(tmp_path: Path, monkeypatch) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    before = everything(outbox)

    def breaks(*_: object) -> None:
        raise OSError("no more room")

    monkeypatch.setattr("wayfare.field.runtime.outbox.digest", breaks)
    with pytest.raises(OSError, match="no more room"):
        cut(outbox, 1)
    assert everything(outbox) == before


def test_nothing_is_cut_or_received_while_an_update_is_open(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    cut(outbox, 1)
    with pytest.raises(InvariantError, match="is open"):
        cut(outbox, 2)
    with pytest.raises(InvariantError, match="is open"):
        outbox.receive(INITIAL, 1, 1)


def test_numbers_of_updates_go_on_where_the_server_says(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    assert cut(outbox, 1, next_update=17).number == 17


def test_a_contact_with_nothing_to_send_promises_nothing(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    assert cut(outbox, 1, entries=0) is None
    assert outbox.open_update() is None
    assert np.allclose(undelivered(outbox), outbox.learned, atol=1e-6)
    assert torch.equal(outbox.state.received, outbox.local)


def test_the_store_of_another_device_is_refused(tmp_path: Path) -> None:
    open_outbox(tmp_path).close()
    with pytest.raises(RunFolderError, match="fleet: 'one' -> 'two'"):
        Outbox(
            tmp_path / "device.sqlite", INITIAL, METHOD, layout=LAYOUT, budget_joules=10.0, identity={"fleet": "two"}
        )


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "device.sqlite").write_bytes(b"something else" * 100)
    with pytest.raises(RunFolderError, match="cannot be opened"):
        open_outbox(tmp_path)
