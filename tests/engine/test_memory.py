"""Memory grows with what is needed: bursts under way, windows of minibatches, vectors on disk."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.jobs import job, starts
from torch import Tensor

from wayfare.engine import Burst, Engine, InMemory, OnDisk, Trainer, make_engine
from wayfare.errors import RunFolderError
from wayfare.learning.batches import Batches
from wayfare.learning.models.mlp import Mlp
from wayfare.streams import Stream, generator


def test_devices_that_have_not_begun_share_the_initial_model() -> None:
    local = job(Mlp((6, 3)), devices=300)
    initial = starts(local, torch.float32)[0]
    contacts = [np.array([2 + device // 10, 35]) for device in range(local.devices)]
    trainer = Trainer(make_engine("stacked", local.training), initial, contacts, training="always")
    trainer.meet(range(10), 2)
    assert trainer.vectors == 48
    assert trainer.model(299) is initial
    for device in range(10):
        trainer.receive(device, initial)
    trainer.meet(range(10, 20), 3)
    # Vectors of those who received a model serve those who run next.
    assert trainer.vectors == 48
    assert trainer.model(0) is initial


def test_a_crowd_is_met_without_running_ahead() -> None:
    local = job(Mlp((6, 3)), devices=100)
    initial = starts(local, torch.float32)[0]
    trainer = Trainer(
        make_engine("stacked", local.training), initial, [np.array([5])] * 60 + [np.array([9])] * 40, training="always"
    )
    trainer.meet(range(60), 5)
    assert trainer.vectors == 60


def test_vectors_on_disk_are_the_vectors_that_were_kept(tmp_path: Path) -> None:
    entries = 5_000
    rng = np.random.default_rng(0)
    vectors = [torch.from_numpy(rng.standard_normal(entries).astype(np.float32)) for _ in range(8)]
    on_disk, in_memory = OnDisk(tmp_path / "vectors", 4, entries), InMemory()
    for device in range(4):
        first = on_disk.keep(device, vectors[device])
        assert torch.equal(first, in_memory.keep(device, vectors[device]))
    kept = [on_disk.keep(device, vectors[4 + device]) for device in (0, 2)]
    assert torch.equal(kept[0], vectors[4])
    assert torch.equal(kept[1], vectors[6])
    # What is kept can be the very row it is kept in.
    assert torch.equal(on_disk.keep(2, kept[1]), vectors[6])
    assert (tmp_path / "vectors").stat().st_size >= 4 * 4 * entries


def test_a_row_on_disk_is_one_tensor_because_new_ones_would_break_up_the_memory(tmp_path: Path) -> None:
    shelf, vector = OnDisk(tmp_path / "vectors", 2, 5), torch.ones(5)
    assert shelf.keep(1, vector) is shelf.keep(1, 2 * vector)


def test_a_checkpoint_of_one_row_does_not_contain_the_others(tmp_path: Path) -> None:
    shelf, saved = OnDisk(tmp_path / "vectors", 1_000, 5_000), io.BytesIO()
    torch.save([shelf.keep(1, torch.ones(5_000)), shelf.keep_local(1, torch.ones(5_000))], saved)
    assert saved.tell() < 3 * 4 * 5_000


def test_a_memory_of_one_number_is_not_written_to_disk(tmp_path: Path) -> None:
    shelf, nothing = OnDisk(tmp_path / "vectors", 2, 5_000), torch.zeros(()).expand(5_000)
    assert shelf.keep(0, nothing) is nothing


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shelf = OnDisk(tmp_path / "vectors", 2, 5)
    monkeypatch.setattr(shelf._kept, "_file", type("Full", (), {"seek": full, "name": shelf._kept._file.name})())
    with pytest.raises(RunFolderError, match="vectors: cannot store the devices' state: No space left on device"):
        shelf.keep(0, torch.ones(5))


def test_few_local_models_of_a_crowd_are_in_memory_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd trains in parts, and a local model that is not delivered waits on disk for the end of the crowd."""
    monkeypatch.setattr("wayfare.engine.trainer._PART_BYTES", 1)
    monkeypatch.setattr("wayfare.engine.trainer._AHEAD_DEVICES", 4)
    local = job(Mlp((6, 3)), devices=20)
    initial = starts(local, torch.float32)[0]
    contacts, engine = [np.array([5, 9])] * local.devices, Counting(make_engine("stacked", local.training))
    shelf = OnDisk(tmp_path / "vectors", local.devices, len(initial))
    trainer = Trainer(engine, initial, contacts, training="always", shelf=shelf)
    whole = Trainer(make_engine("stacked", local.training), initial, contacts, training="always")
    for round_ in (5, 9):
        whole.meet(range(20), round_)
        expected = [whole.model(device).clone() for device in range(20)]
        for device in trainer.met(range(20), round_):
            assert torch.equal(trainer.model(device), expected[device])
            if device % 3 == 0:
                trainer.delivered(device)
        for device in range(0, 20, 3):
            trainer.receive(device, initial)
            whole.receive(device, initial)
    assert engine.most == 4
    assert all(torch.equal(trainer.model(device), whole.model(device)) for device in range(20))
    rows = np.memmap(tmp_path / "vectors-local", dtype=np.float32, mode="r").reshape(20, -1)
    assert [device for device in range(20) if not rows[device].any()] == [0, 3, 6, 9, 12, 15, 18]


class Counting(Engine):
    """Counts the local models of a call."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.most = engine, 0

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        self.most = max(self.most, len(models))
        self._engine.run(models, bursts)


def test_local_models_of_unfinished_bursts_wait_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.engine.trainer._PART_BYTES", 1)
    monkeypatch.setattr("wayfare.engine.trainer._AHEAD_DEVICES", 2)
    local = job(Mlp((6, 3)), devices=4)
    initial = starts(local, torch.float32)[0]
    contacts = [np.array([3, 9]) for _ in range(local.devices)]

    def trained(shelf: OnDisk | None) -> Trainer:
        trainer = Trainer(
            make_engine("stacked", local.training), initial, contacts, training="always", policy="lazy", shelf=shelf
        )
        trainer.meet(range(4), 3)
        trainer.receive(1, initial)
        trainer.meet([0, 1], 9)
        return trainer

    on_disk = trained(OnDisk(tmp_path / "first", 4, len(initial)))
    in_memory = trained(None)
    assert all(torch.equal(on_disk.model(device), in_memory.model(device)) for device in range(4))
    rows = np.memmap(tmp_path / "first-local", dtype=np.float32, mode="r").reshape(4, -1)
    assert np.array_equal(rows[2, : len(initial)], in_memory.model(2).numpy())
    # A resumed run puts them on its own shelf.
    shelf = OnDisk(tmp_path / "second", 4, len(initial))
    resumed = Trainer(make_engine("stacked", local.training), initial, contacts, training="always", shelf=shelf)
    resumed.restore(in_memory.state(), [initial] * 4)
    resumed.meet([2], 9)
    in_memory.meet([2], 9)
    assert torch.equal(resumed.model(2), in_memory.model(2))


def test_minibatches_are_the_same_through_a_window_as_in_one_table() -> None:
    held, rounds, batch = np.arange(100, 137), 2_000, 8
    batches = Batches([held], batch, rounds, seed=3, augment=True)
    table = held[generator(3, Stream.MINIBATCH, 0).integers(0, len(held), size=(rounds, batch))]
    moves = generator(3, Stream.AUGMENTATION, 0).integers((-4, -4, 0), (5, 5, 2), size=(rounds, batch, 3))
    for first, steps in [(1, 12), (250, 900), (1_900, 101), (3, 5), (257, 1), (2_000, 1)]:
        assert np.array_equal(batches.of(0, first, steps), table[first - 1 : first - 1 + steps])
        crops = batches.crops_of(0, first, steps)
        assert crops is not None
        assert np.array_equal(crops, moves[first - 1 : first - 1 + steps])
