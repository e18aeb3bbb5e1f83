"""The order of work in a lane, with a network that counts steps in the place of one on a GPU."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from wayfare.engine.base import Steering

pytest.importorskip("triton")
from wayfare.engine.batched.lane import Group, Lane, Rows

WIDTH, ENTRIES = 6, 3


class Recorded:
    """In the place of an event: notes when it is recorded, and what it waits for."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def record(self) -> None:
        self._notes.append(f"end {self._name}")

    def wait(self) -> None:
        self._notes.append(f"wait {self._name}")

    def query(self) -> bool:
        return False


class Counting(Lane):
    """Every step adds 1 to all entries of the devices that take part."""

    def __init__(self, notes: list[str]) -> None:
        self._notes, self._launched, self._vectors = notes, deque(), [None, None, None]
        self._models, self._weights = torch.zeros(WIDTH, ENTRIES), torch.zeros(WIDTH, ENTRIES)
        self.stream = None  # type: ignore[assignment]

    def _fill(self, rows: object, first: int) -> None:
        pass

    def _do(self, work: str, number: int) -> None:
        self._notes.append(f"{work} {number}")
        match work:
            case "load":
                self._weights[:number] = self._models[:number]
            case "step":
                self._weights[:number] += 1
            case "read":
                self._models[:number] = self._weights[:number]
            case "read one":
                self._models[number] = self._weights[number]


def test_bursts_that_end_with_the_last_step_are_read_together_and_others_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    notes: list[str] = []
    steps = [3, 3, 2, 1, 1]
    before = Recorded("before", notes)
    ends = {length: Recorded(str(length), notes) for length in steps}
    models = [torch.full((ENTRIES,), 10.0 * device) for device in range(len(steps))]
    group = Group(
        models=models,
        rows=[Rows(np.zeros((length, 1), np.int64), None, np.zeros(length, np.float32)) for length in steps],
        offsets=None,
        steering=Steering(None, None, None),
        after=[before, None, before, None, None],  # type: ignore[list-item]
        ends=[ends[length] for length in steps],  # type: ignore[misc]
    )
    Counting(notes).run(group)
    assert [float(model[0]) for model in models] == [3.0, 13.0, 22.0, 31.0, 41.0]
    assert notes == [
        *("wait before", "load 5"),
        *("step 5", "read one 3", "read one 4", "end 1"),
        *("step 3", "read one 2", "end 2"),
        *("step 2", "read 2", "end 3"),
    ]
