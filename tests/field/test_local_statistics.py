"""Class statistics of growing folders: devices add differences, and the sums at the server are exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.whole import MAX_WHOLE
from wayfare.engine import Burst
from wayfare.errors import ScenarioError
from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.device import DeviceOptions, open_store
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.life_cycle import judge_of, network_of
from wayfare.field.runtime.local_statistics import LocalStatistics
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import Ask, Chunk
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.rules import Limits
from wayfare.field.runtime.work import Work
from wayfare.learning.sums import SumsModel, collect
from wayfare.scenario import load
from wayfare.sparsify import Sparse

FILE = """
import torch
from wayfare import local_task

task = local_task("points", network=lambda: torch.nn.Linear(6, 3), sample=torch.zeros(6), classes=3)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
pictures = local_task("pictures", network=network, sample=torch.zeros(1, 2, 3), classes=3)
"""


def points(seed: int, count: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return (rng.normal(size=(count, 6)) + 3 * np.eye(6)[labels]).astype(np.float32), labels


def work_of(folder: Path, scheme: str = "statistics", task: str = "task") -> Work:
    # Modules of one process need different names.
    file = folder / f"points_{folder.name}.py"
    file.write_text(FILE, encoding="utf-8")
    return Work(scenario=load("fashion-small", [f"learning.task={file}:{task}"]), scheme_name=scheme)


class Bus:
    """A device without a network, whose folder holds some files."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder, self.work, self.now_s = folder, work, 0.0
        (folder / "data").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        options = DeviceOptions(state=self.folder, data=self.folder / "data")
        bundle = type("Bundle", (), {"fleet_id": "f", "name": self.folder.name})
        self.outbox: Outbox = open_store(bundle, 0, self.work, options)  # type: ignore[arg-type]
        self.engine = LocalStatistics(
            self.work,
            self.folder / "data",
            self.folder / "samples",
            learned=lambda: self.outbox.learned,
            rescan_s=0.0,
            clock=lambda: self.now_s,
        )

    def record(self, seed: int) -> None:
        inputs, labels = points(seed)
        np.savez(self.folder / "data" / f"{seed}.npz", inputs=inputs, labels=labels)

    def collect(self) -> bool:
        self.now_s += 1.0
        if not self.engine.ready():
            return False
        start, round_ = self.outbox.local, self.outbox.progress.trained_round
        result = start.clone()
        self.engine.run([result], [Burst(0, round_ + 1, 1)])
        self.outbox.trained(start, result, round_ + 1)
        return True

    def expected(self, *seeds: int) -> Tensor:
        model = self.work.model
        assert isinstance(model, SumsModel)
        inputs, labels = (np.concatenate(each) for each in zip(*map(points, seeds), strict=True))
        return collect(torch.from_numpy(inputs), torch.from_numpy(labels), model.layout)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path / "bus", work_of(tmp_path))
    yield bus
    bus.outbox.close()


def added(outbox: Outbox) -> Tensor:
    return outbox.local - outbox.state.received


def test_a_device_adds_its_statistics_once_and_then_the_difference(bus: Bus) -> None:
    assert not bus.collect()
    bus.record(1)
    assert bus.collect()
    assert not bus.collect()
    assert torch.equal(added(bus.outbox), bus.expected(1))
    bus.record(2)
    bus.record(3)
    assert bus.collect()
    assert torch.equal(added(bus.outbox), bus.expected(1, 2, 3))
    # Removed data are subtracted.
    (bus.folder / "data" / "2.npz").unlink()
    assert bus.collect()
    assert torch.equal(added(bus.outbox), bus.expected(1, 3))


def test_a_difference_is_never_that_of_fewer_samples_of_a_class_than_the_minimum(bus: Bus) -> None:
    """A sum before one new sample and after it would reveal the sample."""
    inputs, labels = points(1)

    def found_after(count: int) -> Tensor:
        np.savez(bus.folder / "data" / "1.npz", inputs=inputs[:count], labels=labels[:count])
        bus.collect()
        return added(bus.outbox)

    model = bus.work.model
    assert isinstance(model, SumsModel)
    first = found_after(21)
    counts = slice(2, 5)
    assert first[counts].tolist() == [5, 5, 5]
    expected = collect(torch.from_numpy(inputs[:15]), torch.from_numpy(labels[:15]), model.layout)
    assert torch.equal(first, expected)
    assert torch.equal(found_after(22), first)
    assert found_after(28)[counts].tolist() == [10, 5, 5]


def test_a_device_with_too_few_samples_of_every_class_says_so(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    inputs, labels = points(1)
    for count, warnings in ((11, 1), (12, 2), (15, 2)):
        np.savez(bus.folder / "data" / "1.npz", inputs=inputs[:count], labels=labels[:count])
        assert bus.collect() == (count == 15)
        found = [record for record in caplog.records if "no class has min_count samples yet" in record.message]
        assert len(found) == warnings
    assert (found[-1].min_count, found[-1].samples) == (5, 12)  # type: ignore[attr-defined]


def test_after_a_restart_nothing_is_added_twice(bus: Bus) -> None:
    bus.record(1)
    bus.collect()
    bus.outbox.close()
    bus.start()
    assert not bus.collect()
    bus.record(2)
    bus.collect()
    assert torch.equal(added(bus.outbox), bus.expected(1, 2))


def test_what_a_device_must_discard_is_added_again(bus: Bus) -> None:
    bus.record(1)
    bus.collect()
    bus.outbox.start_over(1)
    assert bus.collect()
    assert torch.equal(added(bus.outbox), bus.expected(1))


def ledger_of(folder: Path, work: Work) -> Ledger:
    return Ledger(
        folder,
        work.initial_model,
        layout=work.layout,
        aggregation=work.aggregation(Membership()),
        identity={"name": "mes"},
        names=["bus-1", "bus-2"],
        limits=Limits(largest_value=MAX_WHOLE),
    )


def chunk_of(work: Work, values: Tensor, update: int = 1) -> bytes:
    indices = values.nonzero().view(-1)
    entries = Sparse(indices, -values[indices])
    return Chunk(update, 0, 1, update, 0, 0, 0.0, entries, value_bits=0).packed(work.layout)


def test_the_server_adds_up_judges_and_exports_the_classifier(tmp_path: Path) -> None:
    work = work_of(tmp_path)
    buses = [Bus(tmp_path / f"bus-{number}", work) for number in (1, 2)]
    ledger = ledger_of(tmp_path / "mes", work)
    for number, bus in enumerate(buses):
        with ledger.transaction():
            ledger.record(number, chunk_of(work, bus.expected(number, number + 10)))
            OnArrival().apply_due(ledger)
        bus.outbox.close()
    total = sum((bus.expected(number, number + 10) for number, bus in enumerate(buses)), torch.zeros(()))
    assert torch.equal(ledger.model, total)
    heldout = tmp_path / "heldout"
    heldout.mkdir()
    inputs, labels = points(99)
    np.savez(heldout / "h.npz", inputs=inputs, labels=labels)
    judge = judge_of(work.scenario.learning, work.model, heldout, tmp_path / "cache", initial=work.initial_model)
    assert judge(2, ledger.model).score > 0.9
    assert judge(2, ledger.model).untrained_loss == judge(0, work.initial_model).loss
    outputs = network_of(work.model, ledger.model)(torch.from_numpy(inputs))
    assert float((outputs.argmax(1).numpy() == labels).mean()) > 0.9


def test_no_device_can_make_a_sum_inexact(tmp_path: Path) -> None:
    work = work_of(tmp_path)
    ledger = ledger_of(tmp_path / "mes", work)
    huge = torch.zeros(len(work.initial_model))
    huge[3] = 9e6
    ledger.record(0, chunk_of(work, huge))
    with pytest.raises(WireError, match="a sum would exceed 16777216 steps"):
        ledger.record(1, chunk_of(work, huge))
    OnArrival().apply_due(ledger)
    with pytest.raises(WireError, match="a sum would exceed 16777216 steps"):
        ledger.record(1, chunk_of(work, huge))
    ledger.record(1, chunk_of(work, -huge))


def test_a_device_that_lost_its_store_replaces_its_statistics(tmp_path: Path) -> None:
    """In any order, also after a compaction, also twice, and while others deliver."""
    work = work_of(tmp_path)
    bus = Bus(tmp_path / "bus", work)
    bus.outbox.close()
    ledger = ledger_of(tmp_path / "mes", work)
    intake = Intake(ledger, OnArrival(), work.layout)

    held: dict[int, Tensor] = {}

    def deliver(device: int, *seeds: int) -> None:
        standing = intake.ask(device, Ask().packed())
        assert standing is not None
        before, held[device] = held.get(device, torch.zeros(())), bus.expected(*seeds)
        ((_, mark),) = intake.chunks([(device, chunk_of(work, held[device] - before, standing.next_update))])
        assert mark.recorded == [0], mark.refused
        assert torch.equal(ledger.model, sum(held.values(), torch.zeros(())))

    def lose(device: int) -> None:
        held.pop(device, None)
        assert intake.ask(device, Ask(fresh=True).packed()) is not None
        assert torch.equal(ledger.model, sum(held.values(), torch.zeros(len(ledger.model))))

    lose(0)
    assert ledger.version == 0
    deliver(0, 1)
    deliver(1, 5)
    deliver(0, 1, 2)
    lose(0)
    # It asks again before its first upload.
    lose(0)
    deliver(1, 5, 6)
    deliver(0, 2, 3)
    ledger.compact(Window(days=0.0, bytes=0))
    deliver(0, 2, 3, 4)
    lose(0)
    deliver(0, 7)
    assert torch.equal(ledger.replay().model, ledger.model)
    ledger.close()
    again = ledger_of(tmp_path / "mes", work)
    assert torch.equal(again.model, held[0] + held[1])
    again.compact(Window(days=0.0, bytes=0))
    again.reset_device(1)
    OnArrival().apply_due(again)
    assert torch.equal(again.model, held[0])


@pytest.mark.parametrize(
    ("scheme", "task", "message"),
    [
        ("statistics:pilot", "task", "takes axes from pilot samples"),
        ("mads-rd:from-statistics", "task", "trains after its statistics"),
        ("statistics", "pictures", "needs vectors with classes"),
    ],
)
def test_what_cannot_be_collected_is_named(tmp_path: Path, scheme: str, task: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _ = work_of(tmp_path, scheme, task).model
