from __future__ import annotations

import itertools
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wayfare.records.statistics import (
    Reached,
    censored_median,
    difference,
    estimate,
    half_width_95,
    reach,
    sign_flip_test,
)

values = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=8)


@given(values)
@settings(deadline=None)
def test_the_exact_test_counts_every_pattern_of_signs(differences: list[float]) -> None:
    observed = abs(math.fsum(differences))
    slack = 1e-12 * sum(abs(value) for value in differences)
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True))) for signs in patterns]
    expected = sum(one >= observed - slack for one in sums) / len(patterns)
    assert sign_flip_test(differences) == pytest.approx(expected)


def test_the_test_is_that_of_scipy() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1.0, 9)
    theirs = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", alternative="two-sided", n_resamples=2**9
    )
    assert sign_flip_test(list(differences)) == pytest.approx(theirs.pvalue)


def test_many_pairs_are_drawn_always_the_same_and_close_to_the_limit() -> None:
    differences = list(np.random.default_rng(2).normal(0.4, 1.0, 40))
    p = sign_flip_test(differences)
    assert p == sign_flip_test(differences)
    assert p == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, rel=0.25)
    assert sign_flip_test([1.0] * 40) == pytest.approx(1 / 100_001)


def test_up_to_16_pairs_every_pattern_is_counted_and_beyond_they_are_drawn() -> None:
    assert sign_flip_test([1.0] * 16) == 2 / 2**16
    drawn = sign_flip_test([1.0] * 17) * 100_001
    assert drawn == pytest.approx(round(drawn), abs=1e-9)
    assert 1 <= drawn < 10
    # The patterns are always those of one stream.
    assert sign_flip_test([float(number % 7 - 2) for number in range(20)]) == pytest.approx(9037 / 100_001, rel=1e-12)


def test_sums_that_differ_by_rounding_only_are_as_large() -> None:
    # 0.1 + 0.2 + 0.3 depends on the order: of the 8 patterns both without a change count.
    assert sign_flip_test([0.1, 0.2, 0.3]) == sign_flip_test([0.3, 0.2, 0.1]) == 2 / 8
    assert sign_flip_test([1.0, 1e-9]) == 2 / 4


def test_under_the_null_p_is_uniform_enough() -> None:
    generator = np.random.default_rng(3)
    found = np.array([sign_flip_test(list(generator.normal(0, 1, 8))) for _ in range(500)])
    assert abs((found <= 0.1).mean() - 0.1) < 0.05


@pytest.mark.parametrize("count", [2, 3, 10, 30, 31, 32, 60, 500])
def test_intervals_are_those_of_student(count: int) -> None:
    sample = list(np.random.default_rng(count).normal(5, 2, count))
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(sample), scale=stats.sem(sample))
    found = estimate(sample)
    assert found.ci95 == pytest.approx((high - low) / 2, rel=1e-12)
    assert (found.mean, found.sd, found.seeds) == (
        pytest.approx(statistics.fmean(sample)),
        pytest.approx(statistics.stdev(sample)),
        count,
    )


def test_one_seed_has_neither_deviation_nor_interval_nor_test() -> None:
    assert (estimate([0.7]).sd, estimate([0.7]).ci95, half_width_95([0.7])) == (None, None, None)
    assert (difference([0.1]).ci95, difference([0.1]).p, difference([0.1]).pairs) == (None, None, 1)


@pytest.mark.parametrize(
    ("reached", "median"),
    [
        ([3.0, 1.0, 2.0], 2.0),
        ([3.0, None, 2.0], 3.0),
        ([None, None, 2.0], None),
        ([1.0, 2.0, None, None], None),
        ([1.0, 2.0, 3.0, None], 2.5),
        ([None], None),
    ],
)
def test_seeds_that_never_got_there_count_as_later_than_all_others(
    reached: list[float | None], median: float | None
) -> None:
    found = censored_median(reached)
    assert found.median == median
    assert (found.reached, found.seeds) == (sum(one is not None for one in reached), len(reached))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_leaves_no_interval_and_no_test(odd: float) -> None:
    found, apart = estimate([0.5, odd, 0.7]), difference([odd, 1.0, -2.0])
    assert math.isnan(found.mean)
    assert math.isnan(apart.mean)
    assert (found.sd, found.ci95, apart.ci95, apart.p) == (None, None, None, None)


@pytest.mark.parametrize(
    ("better", "target", "round_"),
    [("higher", 0.5, 20.0), ("higher", 0.4, 10.0), ("higher", 0.9, None), ("lower", 0.4, 10.0), ("lower", 0.1, None)],
)
def test_a_target_is_reached_at_the_first_evaluation_that_has_it(
    better: str, target: float, round_: float | None
) -> None:
    scores = {"higher": [0.1, 0.4, 0.5, 0.3, 0.5], "lower": [0.9, 0.4, 0.3, 0.5, 0.2]}[better]
    rounds = np.arange(0, 50, 10)
    evaluations = {"score": np.array(scores), "round": rounds, "time_s": 3.0 * rounds, "energy_joules": 0.5 * rounds}
    found = reach(SimpleNamespace(evaluations=evaluations, metric=SimpleNamespace(better=better)), target)
    if round_ is None:
        assert found == Reached(rounds=None, time_s=None, energy_joules=None)
    else:
        assert found == Reached(rounds=round_, time_s=3 * round_, energy_joules=round_ / 2)
