"""The learning rate over the rounds of a run."""

from __future__ import annotations

import numpy as np
import pytest

from wayfare.learning.schedule import Schedule


def test_a_constant_rate_is_the_whole_rate() -> None:
    assert Schedule().is_constant
    assert Schedule("constant", 10).shares(3, 4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_falling_rate_begins_whole_and_ends_near_nothing(shape: str) -> None:
    shares = Schedule(shape, 100).shares(1, 100)  # type: ignore[arg-type]
    assert shares[0] == 1
    assert 0 < shares[-1] < 0.011
    assert bool(np.all(np.diff(shares) < 0))
    assert shares[50] == pytest.approx(0.5)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
def test_a_share_belongs_to_its_round_whoever_asks(shape: str) -> None:
    schedule = Schedule(shape, 20)  # type: ignore[arg-type]
    whole = schedule.shares(1, 20)
    assert [float(schedule.shares(round_, 1)[0]) for round_ in range(1, 21)] == whole.tolist()


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_after_the_last_round_the_rate_stays_at_nothing(shape: str) -> None:
    assert Schedule(shape, 20).shares(21, 100).tolist() == [0.0] * 100  # type: ignore[arg-type]
