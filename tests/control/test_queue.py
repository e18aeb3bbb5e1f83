from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wayfare.control import queue


@given(st.floats(0, 100), st.integers(0, 50), st.floats(1e-3, 5))
def test_idle_rounds_at_once_equal_idle_rounds_one_by_one(backlog: float, rounds: int, pace: float) -> None:
    one_by_one = backlog
    for _ in range(rounds):
        one_by_one = queue.spend(one_by_one, 0.0, pace)
    assert abs(queue.idle(backlog, rounds, pace) - one_by_one) < 1e-9


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.floats(0.01, 3))
def test_the_last_backlog_bounds_what_was_spent_over_the_budget(energies: list[float], pace: float) -> None:
    backlog = 0.0
    for energy in energies:
        backlog = queue.spend(backlog, energy, pace)
        assert backlog >= 0
    assert sum(energies) - pace * len(energies) <= backlog + 1e-9
