"""Memory grows with what is needed: bursts under way, windows of minibatches, vectors on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.jobs import job, starts

from wayfare.engine import InMemory, OnDisk, Trainer, make_engine
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


def test_few_local_models_of_a_crowd_are_in_memory_while_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.engine.trainer._MOST_AWAKE", 4)
    monkeypatch.setattr("wayfare.engine.stacked_mlp._GROUP_BYTES", 1)
    local = job(Mlp((6, 3)), devices=20)
    initial = starts(local, torch.float32)[0]
    contacts, shelf = [np.array([5])] * local.devices, Resting()
    trainer = Trainer(make_engine("stacked", local.training), initial, contacts, training="always", shelf=shelf)
    trainer.meet(range(20), 5)
    assert shelf.most == 4
    assert not shelf.awake
    whole = Trainer(make_engine("stacked", local.training), initial, contacts, training="always")
    whole.meet(range(20), 5)
    assert all(torch.equal(trainer.model(device), whole.model(device)) for device in range(20))


class Resting(InMemory):
    """Counts the local models that are in use."""

    def __init__(self) -> None:
        self.awake: set[int] = set()
        self.most = 0

    def local_model(self, device: int) -> None:
        self.awake.add(device)
        self.most = max(self.most, len(self.awake))

    def rest(self, device: int) -> None:
        self.awake.discard(device)


def test_local_models_of_unfinished_bursts_wait_on_disk(tmp_path: Path) -> None:
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
