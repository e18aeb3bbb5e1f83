"""Whatever a device sends, the server goes on, and only valid chunks of its own change anything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.fuzzing import KINDS, fuzz, valid
from tests.field.parts import LAYOUT, open_ledger
from tests.field.test_ledger import chunks_of, everything
from wayfare.contacts import Opportunities
from wayfare.field.runtime.gathering import ByPlan, Gathering, OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.messages import Ask, Finish, Part
from wayfare.field.runtime.model_encoding import unpacked
from wayfare.field.runtime.rules import Limits


def open_intake(folder: Path, gathering: Gathering | None = None) -> Intake:
    ledger = open_ledger(folder, Limits(budget_joules=1e6))
    return Intake(ledger, gathering or OnArrival(), LAYOUT)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", logger="wayfare.field")


def test_ten_thousand_fuzzed_uploads_neither_crash_nor_change_the_model(tmp_path: Path) -> None:
    intake = open_intake(tmp_path)
    rng = np.random.default_rng(7)
    for device in range(3):
        intake.chunks([(device, data) for data in chunks_of(device, spent=1.0)])
    before, version, model = everything(intake.ledger), intake.ledger.version, intake.ledger.model
    refused = fuzz(intake, 10_000, rng)
    assert refused.total() >= 10_000
    assert set(refused) == {kind.__name__ for kind in KINDS}
    assert everything(intake.ledger) == before
    assert intake.ledger.model is model
    assert sum(counts.refused for counts in intake.counts.values()) == refused.total()
    # A sound chunk of the next update still gets in, among broken ones.
    marks = intake.chunks([(0, b"x"), (1, valid(rng)), (2, KINDS[1](rng))])
    assert [mark.recorded for _, mark in marks if not mark.refused] == [[0]]
    assert intake.ledger.version == version + 1
    assert torch.equal(intake.ledger.replay().model, intake.ledger.model)


def test_fuzzed_questions_are_refused_or_answered(tmp_path: Path) -> None:
    intake = open_intake(tmp_path)
    rng = np.random.default_rng(8)
    good = [
        Ask(update=0, seal=False).packed(),
        Finish(round=1, update=None, have_version=0).packed(),
        Part(version=0, offset=0, size_bytes=10).packed(),
    ]
    before = everything(intake.ledger)
    for _ in range(3000):
        data = bytearray(good[int(rng.integers(3))] if rng.random() < 0.8 else rng.bytes(int(rng.integers(100))))
        for _ in range(int(rng.integers(0, 4))):
            if data:
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
        for answer in (intake.finish, intake.part):
            answer(0, bytes(data))
        intake.ask(0, bytes(data).replace(b"true", b"false"))
    for nested in (b"[" * 60_000, b'{"update":' * 5000, b"9" * 50_000, b'{"update": 1e400}', b"x" * 100_000):
        assert intake.ask(0, nested) is None
        assert intake.finish(0, nested).state == "refused"
        assert intake.part(0, nested) == b""
    assert everything(intake.ledger) == before


def test_a_device_learns_what_is_recorded_and_takes_the_model_in_parts(tmp_path: Path) -> None:
    intake = open_intake(tmp_path)
    chunks = chunks_of(1)
    assert intake.ask(0, Ask().packed()).next_update == 1
    assert intake.finish(0, Finish(round=1, update=1).packed()).state == "refused"
    ((_, mark),) = intake.chunks([(0, chunks[0]), (0, chunks[2]), (0, chunks[0])])
    assert mark.recorded == [0, 2, 0]
    standing = intake.ask(0, Ask(update=1).packed())
    assert (standing.recorded, standing.sealed, standing.version) == ([0, 2], False, 1)
    intake.chunks([(0, data) for data in chunks])
    manifest = intake.finish(0, Finish(round=1, update=1).packed())
    assert manifest.state == "ready"
    data = b""
    while len(data) < manifest.size_bytes:
        asked = Part(version=2, base_version=manifest.base_version, offset=len(data), size_bytes=300)
        data += intake.part(0, asked.packed())
    assert torch.equal(unpacked(data, LAYOUT, base=None, digest=manifest.digest), intake.ledger.model)
    assert intake.part(0, Part(version=9, offset=0, size_bytes=5).packed()) == b""


def test_rounds_of_a_plan_are_applied_in_order_with_everyone_in_them(tmp_path: Path) -> None:
    none = np.zeros(4)
    meets = Opportunities(round=np.array([2, 2, 3, 5]), device=np.array([0, 2, 1, 0]), contact_s=none, distance_m=none)
    intake = open_intake(tmp_path, ByPlan(meets))
    intake.chunks([(2, data) for data in chunks_of(1, round_=2)])
    intake.chunks([(1, data) for data in chunks_of(2, round_=3)])

    def finish(device: int, round_: int, update: int | None = 1, take: bool = True) -> str:
        return intake.finish(device, Finish(round=round_, update=update, take=take).packed()).state

    assert finish(2, 2) == "wait"
    assert finish(1, 3) == "wait"
    assert finish(2, 4) == "refused"
    assert intake.ledger.version == 0
    assert len(intake.ledger.queued()) == 8
    # The queue outlives the process.
    intake.ledger.close()
    intake = open_intake(tmp_path, ByPlan(meets))
    assert len(intake.ledger.queued()) == 8
    # A device that sends nothing finishes too; then both rounds are applied, one version each.
    assert finish(0, 2, update=None) == "ready"
    assert intake.ledger.version == 2
    assert finish(2, 2) == "ready"
    assert finish(1, 3) == "ready"
    assert finish(0, 5, update=None, take=False) == "ready"
    assert intake.ledger.next_round == 6
    assert torch.equal(intake.ledger.replay().model, intake.ledger.model)


def test_a_device_without_a_past_goes_on_with_a_free_number(tmp_path: Path) -> None:
    intake = open_intake(tmp_path)
    intake.chunks([(0, data) for data in chunks_of(1, spent=5.0)[:1]])
    assert intake.ask(0, Ask(fresh=True).packed()).next_update == 2
    ((_, mark),) = intake.chunks([(0, chunks_of(2, number=2, spent=0.5)[0])])
    assert mark.recorded == [0]
    ((_, mark),) = intake.chunks([(0, chunks_of(1, spent=5.0)[1])])
    assert "closed" in mark.refused


def test_a_device_of_an_earlier_version_is_told_to_update_and_a_later_one_is_heard(tmp_path: Path) -> None:
    intake = open_intake(tmp_path)
    intake.work = {"task": "1", "wire format": "2"}
    standing = intake.ask(0, Ask(work={"task": "1"}).packed())
    assert standing is not None
    assert standing.refused == (
        "wire format: must be the same on this device and on the server; install the same version of Wayfare on both"
    )
    standing = intake.ask(0, Ask(work={"task": "1", "wire format": "2", "new": "3"}).packed())
    assert standing is not None
    assert standing.refused is None


def test_messages_hold_nothing_but_what_they_say() -> None:
    # A machine of the previous version does not know the newest fields.
    assert json.loads(Ask(update=3).packed()) == {"update": 3}
    assert json.loads(Ask(update=3, running=7).packed()) == {"update": 3, "running": 7}
