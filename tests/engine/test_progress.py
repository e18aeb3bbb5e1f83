"""When a lane of a GPU needs its next step."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from wayfare.engine.batched.progress import Progress, StepTimes


class Event:
    """An event of a GPU that the test lets happen, with a time in milliseconds."""

    def __init__(self, **_: Any) -> None:
        self.at_ms: float | None = None

    def query(self) -> bool:
        return self.at_ms is not None

    def elapsed_time(self, end: Event) -> float:
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the host in seconds, which the test moves on."""
    now = [100.0]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def took(milliseconds: float, devices: list[int], *, is_first: bool = False) -> Progress:
    """A group that has ended."""
    group = Progress(devices, is_first=is_first)
    group.begin.at_ms, group.end.at_ms = 50.0, 50.0 + milliseconds  # type: ignore[attr-defined]
    return group


def test_a_step_ends_soon_when_most_of_its_usual_time_is_over(clock: list[float]) -> None:
    times, group = StepTimes(), Progress([4], is_first=False)
    times.note(took(6.0, [4]))
    assert not times.is_ending(group)
    group.begin.at_ms = 0.0  # type: ignore[attr-defined]
    assert not times.is_ending(group)
    clock[0] += 3.9e-3
    assert not times.is_ending(group)
    # Two milliseconds before the end.
    clock[0] += 0.2e-3
    assert times.is_ending(group)


def test_a_short_step_that_has_not_begun_does_not_end_soon(clock: list[float]) -> None:
    times, group = StepTimes(), Progress([1], is_first=False)
    times.note(took(1.0, [1]))
    assert not times.is_ending(group)
    group.begin.at_ms = 0.0  # type: ignore[attr-defined]
    assert times.is_ending(group)


def test_steps_of_unknown_length_end_when_they_have_ended(clock: list[float]) -> None:
    times, group = StepTimes(), Progress([4, 3], is_first=False)
    # A compilation and several steps at once say nothing about one step.
    times.note(took(900.0, [3], is_first=True))
    times.note(took(10.0, [4, 3]))
    times.note(took(6.0, [4]))
    group.begin.at_ms = 0.0  # type: ignore[attr-defined]
    assert not times.is_ending(group)
    clock[0] += 60.0
    assert not times.is_ending(group)
    group.end.at_ms = 60_000.0  # type: ignore[attr-defined]
    assert times.is_ending(group)


def test_the_newest_times_count_most(clock: list[float]) -> None:
    times, group = StepTimes(), Progress([4], is_first=False)
    for milliseconds in [30.0, *[6.0] * 40]:
        times.note(took(milliseconds, [4]))
    group.begin.at_ms = 0.0  # type: ignore[attr-defined]
    assert not times.is_ending(group)
    clock[0] += 4.1e-3
    assert times.is_ending(group)
