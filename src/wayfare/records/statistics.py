"""Statistics over seeds: means with intervals, paired differences with a test, and the time to reach a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean, median, stdev

import numpy as np

from wayfare.records.read import RunRecord
from wayfare.streams import FLEET, Stream, generator

# Up to this many pairs the test enumerates all patterns of signs ...
_EXACT_PAIRS = 16
# ... and beyond it draws this many.
_DRAWN = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds. Deviation and half the 95 % interval are None for one seed, or if a value is not finite."""

    mean: float
    sd: float | None
    ci95: float | None
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean of paired differences; p is the chance of one at least as large if all signs were random."""

    mean: float
    ci95: float | None
    p: float | None
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The first evaluation at which a run reached a target score; None if it never did."""

    rounds: float | None
    time_s: float | None
    energy_joules: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Censored:
    """A median over seeds, some of which may not have reached the target. None if at most half did."""

    reached: int
    seeds: int
    median: float | None


def estimate(values: Sequence[float]) -> Estimate:
    sd = stdev(values) if _spread(values) else None
    return Estimate(mean=_mean(values), sd=sd, ci95=half_width_95(values), seeds=len(values))


def difference(differences: Sequence[float]) -> Difference:
    p = sign_flip_test(differences) if _spread(differences) else None
    return Difference(mean=_mean(differences), ci95=half_width_95(differences), p=p, pairs=len(differences))


def half_width_95(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of a mean: t s / sqrt(n), with Student's t of n - 1 degrees of freedom."""
    if not _spread(values):
        return None
    from scipy.special import stdtrit

    return float(stdtrit(len(values) - 1, 0.975) * stdev(values) / len(values) ** 0.5)


def _spread(values: Sequence[float]) -> bool:
    """Whether a deviation exists: the score of a diverged run may be NaN."""
    return len(values) > 1 and all(map(isfinite, values))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if all(map(isfinite, values)) else nan


def sign_flip_test(differences: Sequence[float]) -> float:
    """The two-sided permutation test of paired values: how often |sum of +-d| is at least |sum of d|.

    Without an effect, the two members of a pair are exchangeable, so every sign pattern is equally likely. With n pairs
    p is at least 2 / 2^n.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) <= _EXACT_PAIRS:
        patterns = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        drawn = 0
    else:
        chance = generator(0, Stream.SIGN_FLIPS, FLEET)
        patterns = chance.integers(0, 2, (_DRAWN, len(values)))
        drawn = 1
    sums = np.abs((1 - 2 * patterns) @ values)
    # Allow for rounding, because the order of the sum differs.
    as_large = int((sums >= abs(values.sum()) - 1e-12 * np.abs(values).sum()).sum())
    # Drawn patterns also include the observed one, so that p is never 0.
    return (as_large + drawn) / (len(sums) + drawn)


def reach(record: RunRecord, target: float) -> Reached:
    scores = record.evaluations["score"]
    there = scores >= target if record.metric.better == "higher" else scores <= target
    if not there.any():
        return Reached(rounds=None, time_s=None, energy_joules=None)
    first = int(np.argmax(there))
    return Reached(
        rounds=float(record.evaluations["round"][first]),
        time_s=float(record.evaluations["time_s"][first]),
        energy_joules=float(record.evaluations["energy_joules"][first]),
    )


def censored_median(values: Sequence[float | None]) -> Censored:
    """The median of values in which None counts as larger than any number, so that no seed is omitted."""
    reached = [value for value in values if value is not None]
    middle = median([*reached, *[float("inf")] * (len(values) - len(reached))])
    return Censored(reached=len(reached), seeds=len(values), median=middle if np.isfinite(middle) else None)
