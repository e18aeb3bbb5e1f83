"""Bounded writes: large vectors as files, training that is saved now and then, and a budget of bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, METHOD, cut, dies_at, noise, open_outbox, train, undelivered
from tests.field.test_outbox import STEPS, everything
from wayfare.errors import RunFolderError
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.writes import WriteBudget, WriteLimits

LAZY = WriteLimits(every_s=1e9)
DAY_S = 86_400.0


@pytest.fixture
def _all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every vector is large."""
    monkeypatch.setattr("wayfare.field.runtime.writes.INLINE_BYTES", 0)


def lazy_outbox(folder: Path) -> Outbox:
    return Outbox(
        folder / "device.sqlite",
        INITIAL,
        METHOD,
        layout=LAYOUT,
        budget_joules=10.0,
        identity={"fleet": "one"},
        audit=True,
        writes=LAZY,
    )


def files(folder: Path) -> list[Path]:
    return list(folder.glob("*.vector"))


def vector_files(outbox: Outbox) -> int:
    return len({file for vector, file in outbox._vector_store.stored.values() if vector is not None})


@pytest.mark.usefixtures("_all_files")
def test_equal_vectors_share_a_file_and_zeros_have_none(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, audit=False)
    assert vector_files(outbox) == 1
    train(outbox, 1, 1)
    # Base and model, and the local model.
    assert vector_files(outbox) == 2
    opened = cut(outbox, 1)
    # Base is the local model; the model and the memory.
    assert vector_files(outbox) == 3
    outbox.settle(opened.number, range(opened.chunks))
    outbox.receive(noise(3), 1, 1)
    assert vector_files(outbox) == 2
    assert {file.name for file in files(tmp_path)} == {file for _, file in outbox._vector_store.stored.values()}
    again = open_outbox(tmp_path, audit=False)
    assert everything(again) == everything(outbox)
    assert again.local is again.model


@pytest.mark.usefixtures("_all_files")
@pytest.mark.parametrize("step", ["cut", "receive"])
def test_power_that_fails_at_any_statement_leaves_all_of_a_step_or_nothing_with_files(
    step: str, tmp_path: Path
) -> None:
    before = {"cut": (), "train": (), "settle some": ("cut",), "settle all": ("cut",), "take back": ("cut",)}
    outbox = open_outbox(tmp_path)
    train(outbox, 1, 1)
    for earlier in before.get(step, ("cut", "settle all")):
        STEPS[earlier](outbox)
    untouched = everything(outbox)
    outbox.close()
    for statement in range(1, 100):
        copy = tmp_path / f"at-{statement}"
        copy.mkdir()
        for file in tmp_path.glob("device.sqlite*"):
            (copy / file.name).write_bytes(file.read_bytes())
        victim = open_outbox(copy)
        killed = dies_at(statement, victim._database.connection, partial(STEPS[step], victim))
        left = open_outbox(copy)
        assert (everything(left) == untouched) == killed
        used = {file for _, file in left._vector_store.stored.values()}
        assert {file.name for file in files(copy)} == used
        if not killed:
            return
    raise AssertionError("the step never ended")


@pytest.mark.usefixtures("_all_files")
def test_training_stays_in_memory_and_a_kill_repeats_it(tmp_path: Path) -> None:
    outbox = lazy_outbox(tmp_path)
    written = outbox.written_bytes
    for round_ in range(1, 50):
        train(outbox, round_, round_)
    assert outbox.written_bytes == written
    assert outbox.progress.trained_round == 49
    killed = lazy_outbox(tmp_path)
    assert killed.progress.trained_round == 0
    assert torch.equal(killed.local, INITIAL)
    assert np.array_equal(killed.learned, np.zeros(ENTRIES))
    outbox.close()
    stopped = lazy_outbox(tmp_path)
    assert stopped.progress.trained_round == 49
    assert torch.equal(stopped.local, outbox.local)
    assert np.array_equal(stopped.learned, outbox.learned)


@pytest.mark.usefixtures("_all_files")
def test_a_kill_at_any_time_loses_training_and_nothing_that_was_promised(tmp_path: Path) -> None:
    outbox = lazy_outbox(tmp_path)

    def balanced(found: Outbox, delivered: torch.Tensor) -> None:
        assert np.allclose((undelivered(found) + delivered).numpy(), found.learned, atol=1e-5)

    delivered = torch.zeros(ENTRIES, dtype=torch.float64)
    for round_ in range(1, 8):
        train(outbox, round_, round_)
        balanced(lazy_outbox(tmp_path), delivered)
        opened = cut(outbox, round_)
        balanced(killed := lazy_outbox(tmp_path), delivered)
        assert (killed.progress.trained_round, killed.progress.cut_round) == (round_, round_)
        train(outbox, 100 + round_, round_)
        outbox.take_back(opened.number, [])
        balanced(lazy_outbox(tmp_path), delivered)
        train(outbox, 200 + round_, round_)
        outbox.receive(noise(1000 + round_), round_, round_)
        balanced(outbox, delivered)
        balanced(killed := lazy_outbox(tmp_path), delivered)
        # The training since the cut was not on disk.
        assert torch.equal(killed.local, killed.model)


def test_the_chunks_of_old_updates_are_not_listed_for_ever(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, audit=False)
    for round_ in range(1, 40):
        train(outbox, round_, round_)
        opened = cut(outbox, round_)
        outbox.settle(opened.number, range(opened.chunks))
        outbox.receive(noise(round_), round_, round_)
    assert {number for number, *_ in outbox.outcomes()} == set(range(24, 40))


@pytest.mark.usefixtures("_all_files")
def test_a_store_without_one_of_its_files_is_rejected(tmp_path: Path) -> None:
    open_outbox(tmp_path).close()
    for file in files(tmp_path):
        file.unlink()
    with pytest.raises(RunFolderError, match=r"its file .* cannot be read"):
        open_outbox(tmp_path)


def test_a_device_writes_no_more_than_its_budget_in_a_day() -> None:
    now = [0.0]
    budget = WriteBudget(WriteLimits(every_s=30.0, daily_bytes=20e9), clock=lambda: now[0])
    model = 26_000_000
    saves = exchanges = 0
    while now[0] < 3 * DAY_S:
        now[0] += 2.0
        if budget.may_save(model):
            budget.wrote(model)
            budget.saved()
            saves += 1
        if now[0] % 10 == 0 and budget.may_exchange():
            budget.wrote(4 * model)
            exchanges += 1
        assert budget.written_bytes <= 20e9 * max(now[0] / DAY_S, 1.0)
    assert budget.written_bytes > 0.85 * 3 * 20e9
    assert exchanges > 100


def test_a_budget_outlives_the_process_and_a_clock_that_jumps_back() -> None:
    now = [1000.0]
    budget = WriteBudget(WriteLimits(daily_bytes=86_400.0 / 0.9), clock=lambda: now[0])
    budget.wrote(int(budget.left_bytes) + 50)
    assert not budget.may_exchange()
    again = WriteBudget(WriteLimits(daily_bytes=86_400.0 / 0.9), clock=lambda: now[0])
    again.resume(*budget.as_fact())
    now[0] = 900.0
    assert not again.may_exchange()
    now[0] = 960.0
    assert again.may_exchange()
