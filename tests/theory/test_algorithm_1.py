"""Algorithm 1 and its drawn contacts against loops that are written out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wayfare.theory import curves
from wayfare.theory.curves import Dot, Setting, dots
from wayfare.theory.montecarlo import DrawnContacts, Problem, Trial, algorithm_1, draw_contacts

DEVICES, ENTRIES, ROUNDS = 3, 5, 12


class Fixed:
    """A generator that repeats one gap and one length, and notes how many it is asked for."""

    def __init__(self, gap_s: float, length_s: float, coin: float = 0.9) -> None:
        self._times_s, self._coin, self.counts = {True: gap_s, False: length_s}, coin, []  # type: ignore[var-annotated]

    def exponential(self, mean_s: float, count: int) -> np.ndarray:
        self.counts.append(count)
        return np.full(count, self._times_s[len(self.counts) % 2 == 1])

    def random(self) -> float:
        return self._coin


def drawn(rng: Fixed, *, rounds: int = 4, counting: str = "start", **settings: Any) -> DrawnContacts:
    given = {"contact_s": 5.0, "inter_contact_s": 20.0, "round_s": 10.0, "devices": 1, **settings}
    return draw_contacts(rng, rounds=rounds, counting=counting, **given)  # type: ignore[arg-type]


def test_contacts_under_way_at_the_end_count_and_those_that_start_there_do_not() -> None:
    # Contacts start at 30 s and last 25 s; the end is at 40 s.
    assert drawn(Fixed(30.0, 25.0), counting="overlap").met[:, 0].tolist() == [False, False, False, True]
    assert drawn(Fixed(30.0, 25.0)).seconds[:, 0].tolist() == [0.0, 0.0, 0.0, 25.0]
    # The last one ends in the last round, or in the round before it.
    assert drawn(Fixed(11.0, 24.0), counting="overlap").met[:, 0].tolist() == [False, True, True, True]
    assert drawn(Fixed(11.0, 18.0), counting="overlap").met[:, 0].tolist() == [False, True, True, False]
    for counting in ("start", "overlap"):
        assert not drawn(Fixed(40.0, 5.0), counting=counting).met.any()


def test_a_device_begins_in_contact_as_often_as_it_is_in_contact() -> None:
    # 5 of 25 s are contact: a coin of 0.2 begins with a gap, one just below it with a contact.
    assert drawn(Fixed(30.0, 3.0, coin=0.2)).met[:, 0].tolist() == [False, False, False, True]
    assert drawn(Fixed(30.0, 3.0, coin=0.199)).met[:, 0].tolist() == [True, False, False, True]


@pytest.mark.parametrize(("rounds", "expected"), [(10, 4), (1000, 400), (40, 16)])
def test_so_many_contacts_are_drawn_that_a_fleet_hardly_runs_out(rounds: int, expected: int) -> None:
    rng = Fixed(20.0, 5.0)
    drawn(rng, rounds=rounds, devices=2)
    # Ten standard deviations of a Poisson number, and 50 more.
    assert rng.counts == [int(expected + 10 * math.sqrt(expected)) + 50] * 4


def by_loops(problem: Problem, contacts: DrawnContacts, entries_per_s: float, eta: float, rng: Any) -> dict[str, Any]:
    """Algorithm 1 with lists, one device and one entry at a time."""
    server, virtual = [0.0] * ENTRIES, [0.0] * ENTRIES
    models, memory, cumulative = ([[0.0] * ENTRIES for _ in range(DEVICES)] for _ in range(3))
    last = [0] * DEVICES
    backlog, printed = [0.0], [0.0] * DEVICES
    found: dict[str, Any] = {name: [] for name in SERIES}
    kept, stale, largest = [], [], 0.0
    everyone, everything = range(DEVICES), range(ENTRIES)
    for r in range(ROUNDS):
        gradients = [
            [problem.smoothness * (models[n][i] - problem.optima[n][i]) + problem.slopes[n][i] for i in everything]
            for n in everyone
        ]
        largest = max(largest, *(sum(each**2 for each in gradient) for gradient in gradients))
        optimum, slope = problem.optima.mean(axis=0), problem.slopes.mean(axis=0)
        away = [sum((virtual[i] - models[n][i]) ** 2 for i in everything) for n in everyone]
        overall = [
            sum((problem.smoothness * (models[n][i] - optimum[i]) + slope[i]) ** 2 for i in everything)
            for n in everyone
        ]
        found["divergence"].append(sum(away) / DEVICES)
        found["staleness_sq"].append(sum((r - last[n]) ** 2 for n in everyone) / DEVICES)
        found["undelivered_sq"].append(sum(backlog[last[n]] for n in everyone) / DEVICES)
        found["printed_sq"].append(sum(printed) / DEVICES)
        found["memory_sq"].append(sum(sum(each**2 for each in memory[n]) for n in everyone) / DEVICES)
        found["gradient_sq"].append(sum(overall) / DEVICES)
        noise = rng.standard_normal((DEVICES, ENTRIES)) * problem.noise / math.sqrt(ENTRIES)
        for n in everyone:
            for i in everything:
                step = eta * (gradients[n][i] + noise[n][i])
                models[n][i] -= step
                cumulative[n][i] += step
                virtual[i] -= step / DEVICES
        here = [n for n in everyone if contacts.met[r][n]]
        for n in here:
            update = [memory[n][i] + cumulative[n][i] for i in everything]
            k = min(int(contacts.seconds[r][n] * entries_per_s), ENTRIES)
            sent = [i for _, i in sorted((-abs(update[i]), i) for i in everything)][:k]
            memory[n] = [0.0 if i in sent else update[i] for i in everything]
            cumulative[n] = [0.0] * ENTRIES
            for i in sent:
                server[i] -= update[i] / DEVICES
            printed[n] = (5 - 3 * k / ENTRIES) * sum(each**2 for each in update)
            kept.append(k / ENTRIES)
            stale.append(r + 1 - last[n])
        for n in here:
            models[n], last[n] = list(server), r + 1
        backlog.append(
            sum((memory[n][i] + cumulative[n][i]) ** 2 for n in everyone for i in everything) / DEVICES,
        )
    found |= {"largest_gradient_sq": largest + problem.noise**2, "kept_share": sum(kept) / len(kept)}
    return found | {"staleness_at_contact_sq": sum(each**2 for each in stale) / len(stale)}


SERIES = ("divergence", "staleness_sq", "undelivered_sq", "printed_sq", "memory_sq", "gradient_sq")


@pytest.mark.parametrize(("smoothness", "noise"), [(0.5, 0.7), (0.0, 0.0), (0.9, 0.0)])
def test_algorithm_1_is_what_loops_make_of_it(smoothness: float, noise: float) -> None:
    rng = np.random.default_rng(1)
    problem = Problem(
        optima=rng.standard_normal((DEVICES, ENTRIES)),
        slopes=rng.standard_normal((DEVICES, ENTRIES)),
        smoothness=smoothness,
        noise=noise,
    )
    met = rng.random((ROUNDS, DEVICES)) < 0.4
    contacts = DrawnContacts(met=met, seconds=np.where(met, rng.exponential(2.0, met.shape), 0.0))
    found = algorithm_1(problem, contacts, entries_per_s=0.9, learning_rate=0.3, rng=np.random.default_rng(2))
    expected = by_loops(problem, contacts, 0.9, 0.3, np.random.default_rng(2))
    assert set(expected) == set(Trial.__dataclass_fields__)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("inter_contact_s", "rounds"), [(26.0, 800), (496.0, 1000), (1996.0, 4000), (5e3, 4000)])
def test_a_dot_takes_twenty_cycles_within_limits(
    inter_contact_s: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    trial = SimpleNamespace(
        # The last two thirds of the rounds count.
        divergence=np.repeat([9.0, 6.0], [rounds // 3, rounds - rounds // 3]),
        largest_gradient_sq=2.0,
        kept_share=0.25,
        staleness_at_contact_sq=7.0,
    )
    monkeypatch.setattr(curves, "draw_contacts", lambda rng, **settings: seen.append(settings))
    monkeypatch.setattr(curves, "algorithm_1", lambda *_, **__: trial)
    (dot,) = dots("inter-contact", Setting(), [inter_contact_s], seed=0)
    times = {"contact_s": 4.0, "inter_contact_s": inter_contact_s, "round_s": 10.0}
    assert seen == [{**times, "rounds": rounds, "devices": 20}]
    assert dot == Dot(at=inter_contact_s, divergence=3.0, sparsification_error=0.75, staleness_square=7.0)
