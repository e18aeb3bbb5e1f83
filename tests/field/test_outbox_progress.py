"""What an outbox says of its device, step by step."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, METHOD, cut, noise, open_outbox, train
from wayfare.errors import RunFolderError
from wayfare.field.runtime.messages import unpack
from wayfare.field.runtime.outbox import Outbox, digest
from wayfare.field.runtime.stores import OpenUpdate, Progress
from wayfare.methods import LocalRule
from wayfare.sparsify import Sparse

WITH_MOMENTUM = replace(METHOD, local=LocalRule(momentum=0.9))


def test_a_new_device_has_the_first_model_and_has_done_nothing(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, audit=False)
    assert outbox.progress == Progress(
        trained_round=0,
        cut_round=0,
        cut_s=0.0,
        takes_model=True,
        cut_short=False,
        finished_round=0,
        version=0,
        last_update=0,
    )
    assert (outbox.learned, outbox.velocity, outbox.open_update(), outbox.outcomes()) == (None, None, None, [])
    assert outbox.state.budget_joules == 10.0
    assert all(torch.equal(model, INITIAL) for model in (outbox.local, outbox.model, outbox.state.received))
    assert not outbox.state.memory.any()


def test_progress_follows_every_step_and_outlives_the_process(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 3)
    assert outbox.progress.trained_round == 3
    before_s = time.time()
    opened = cut(outbox, 4)
    assert opened == OpenUpdate(1, 4, len(outbox.pending(1)))
    assert before_s <= outbox.progress.cut_s <= time.time()
    assert (outbox.progress.cut_round, outbox.progress.takes_model, outbox.progress.cut_short) == (4, True, False)
    assert (outbox.progress.last_update, outbox.progress.finished_round) == (1, 0)
    assert outbox.open_update() == opened
    places = list(range(opened.chunks))
    assert not outbox.settle(1, places[1:])
    assert [place for place, _ in outbox.pending(1)] == [0]
    assert outbox.settle(1, places[:1])
    assert outbox.open_update() is None
    assert {outcome for *_, outcome in outbox.outcomes()} == {"recorded"}
    outbox.receive(noise(2), 5, 4)
    assert (outbox.progress.version, outbox.progress.finished_round) == (5, 4)
    assert outbox.state.received_round == 4
    train(outbox, 3, 6)
    opened = cut(outbox, 7)
    assert opened is not None
    assert opened.number == 2
    chunks = [unpack(data, LAYOUT) for _, data in outbox.pending(2)]
    assert {(chunk.base_version, chunk.received_round, chunk.round, chunk.chunks) for chunk in chunks} == {
        (5, 4, 7, len(chunks))
    }
    assert [chunk.chunk for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0].spent_joules == outbox.state.spent_joules > 0
    digests = {(number, chunk): found for number, chunk, found, _ in outbox.outcomes()}
    assert all(digests[2, place] == digest(data) for place, data in outbox.pending(2))
    outbox.forget_version()
    outbox.finish(8)
    again = open_outbox(tmp_path)
    assert again.progress == outbox.progress
    assert (again.progress.version, again.progress.finished_round) == (None, 8)
    assert len(digest(b"")) == 32


def test_a_device_without_a_model_of_the_server_builds_on_the_first(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    outbox.forget_version()
    train(outbox, 1, 1)
    cut(outbox, 1)
    assert unpack(outbox.pending(1)[0][1], LAYOUT).base_version == 0


def test_a_contact_that_sends_nothing_keeps_everything_and_takes_no_model(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    state = replace(outbox.state, spent_joules=0.5, received=noise(5), memory=noise(6))
    assert outbox.cut(state, None, round_=2, next_update=1, chunk_bytes=300) is None
    assert (outbox.progress.cut_round, outbox.progress.takes_model, outbox.progress.last_update) == (2, False, 0)
    assert outbox.progress.cut_s == pytest.approx(time.time(), abs=60)
    assert outbox.state.spent_joules == 0.5
    assert torch.equal(outbox.state.received, INITIAL)
    assert not outbox.state.memory.any()


def test_a_contact_that_ended_too_early_for_the_new_model_is_marked(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    nothing = Sparse(torch.empty(0, dtype=torch.int64), torch.empty(0))
    outbox.cut(outbox.state, nothing, round_=2, next_update=9, chunk_bytes=300, cut_short=True)
    assert (outbox.progress.cut_short, outbox.progress.takes_model, outbox.progress.last_update) == (True, True, 0)


def test_a_velocity_counts_from_the_model_that_it_was_gathered_on(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, method=WITH_MOMENTUM)
    assert outbox.velocity is not None
    assert not outbox.velocity.any()
    start, speed = outbox.local, noise(7)
    outbox.trained(start, start + noise(1, 0.1), 1, speed)
    assert torch.equal(outbox.velocity, speed)
    # A trainer that began on an older model brings its way along, and no velocity.
    outbox.trained(start, start + noise(2, 0.1), 1, noise(8))
    assert torch.equal(outbox.velocity, speed)
    torch.testing.assert_close(outbox.local, INITIAL + noise(1, 0.1) + noise(2, 0.1))
    outbox.trained(outbox.local, outbox.local + 1.0, 2)
    assert torch.equal(outbox.velocity, speed)
    assert torch.equal(open_outbox(tmp_path, method=WITH_MOMENTUM).velocity, speed)
    opened = cut(outbox, 2)
    outbox.settle(opened.number, range(opened.chunks))
    outbox.receive(noise(3), 1, 2)
    assert not outbox.velocity.any()
    assert len(outbox.velocity) == ENTRIES


def test_what_was_learned_since_a_cut_goes_on_top_of_the_next_model(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    opened = cut(outbox, 1)
    outbox.settle(opened.number, range(opened.chunks))
    train(outbox, 2, 2)
    outbox.receive(noise(3), 1, 1)
    torch.testing.assert_close(outbox.local, noise(3) + noise(2, 0.1))
    assert torch.equal(outbox.state.received, noise(3))
    assert torch.equal(outbox.model, noise(3))


def test_models_of_another_size_are_refused(tmp_path: Path) -> None:
    open_outbox(tmp_path).close()
    with pytest.raises(RunFolderError, match="entries, the model of this task"):
        Outbox(
            tmp_path / "device.sqlite",
            INITIAL[:-1],
            METHOD,
            layout=LAYOUT,
            budget_joules=10.0,
            identity={"fleet": "one"},
        )


def test_a_store_has_format_3_and_keeps_no_sum_unless_asked(tmp_path: Path) -> None:
    file = tmp_path / "device.sqlite"
    plain = Outbox(file, INITIAL, METHOD, layout=LAYOUT, budget_joules=10.0, identity={"fleet": "one"})
    assert plain.learned is None
    plain.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)
