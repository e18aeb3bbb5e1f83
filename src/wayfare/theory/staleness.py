"""Exact staleness for exponential contact times (mean c) and inter-contact times (mean lambda) (Lemma 2).

There are two ways to count a contact. ``overlap``, the paper's: a round is a contact round if the device is in contact
at any time in it. ``start``, the simulator's: a round is a contact round if a contact starts in it.

Let X be the rounds since the last contact round, at the end of any round (theta = r - kappa^(r)). Exactly:

    overlap   P(X >= j) = pi a^j,  pi = lambda / (lambda + c),  a = exp(-delta / lambda)          for j >= 1
    start     P(X >= j) = (lambda^2 a^j - c^2 b^j) / (lambda^2 - c^2),  b = exp(-delta / c)

The staleness at a contact counts the rounds since the previous contact. It is at least 1 and has another law: with
p = 1 - P(X >= 1), the share of contact rounds, P(theta > j) = P(X = j) / p, so E theta = 1/p and
E theta^2 = (1 + 2 E X) / p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from wayfare.arrays import Floats

Counting: TypeAlias = Literal["overlap", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessMoments:
    """Exact moments of staleness, in rounds."""

    contact_round_share: Floats  # p
    age_mean: Floats  # E X
    age_square: Floats  # E X^2
    at_contact_mean: Floats  # E theta over contact rounds
    at_contact_square: Floats  # E theta^2 over contact rounds

    @property
    def before_exchange_square(self) -> Floats:
        """E (X + 1)^2: the second moment of r - kappa^(r-1) over all rounds."""
        return 1.0 + 2.0 * self.age_mean + self.age_square


def age_tail(
    rounds: ArrayLike, contact_s: ArrayLike, inter_contact_s: ArrayLike, round_s: ArrayLike, counting: Counting
) -> Floats:
    """P(X >= j): the probability that the last j rounds had no contact."""
    j, c, gap, delta = (np.asarray(value, dtype=np.float64) for value in (rounds, contact_s, inter_contact_s, round_s))
    if counting == "overlap":
        return np.where(j < 1, 1.0, gap / (gap + c) * np.exp(-j * delta / gap))
    return _mixed(gap, c, lambda mean: np.exp(-j * delta / mean))


def staleness_moments(
    contact_s: ArrayLike, inter_contact_s: ArrayLike, round_s: ArrayLike, counting: Counting = "overlap"
) -> StalenessMoments:
    """Exact moments, from E X = sum P(X >= j) and E X^2 = sum (2j - 1) P(X >= j), both geometric sums."""
    c, gap, delta = (np.asarray(value, dtype=np.float64) for value in (contact_s, inter_contact_s, round_s))

    def once(mean: Floats) -> Floats:
        return np.asarray(np.exp(-delta / mean))

    def sum_of_powers(mean: Floats) -> Floats:
        return once(mean) / -np.expm1(-delta / mean)

    def sum_of_odds(mean: Floats) -> Floats:
        return np.asarray(once(mean) * (1 + once(mean)) / np.expm1(-delta / mean) ** 2)

    if counting == "overlap":
        off = gap / (gap + c)
        first, mean, square = off * once(gap), off * sum_of_powers(gap), off * sum_of_odds(gap)
    else:
        first, mean, square = (_mixed(gap, c, term) for term in (once, sum_of_powers, sum_of_odds))
    share = 1.0 - first
    return StalenessMoments(
        contact_round_share=share,
        age_mean=mean,
        age_square=square,
        at_contact_mean=1.0 / share,
        at_contact_square=(1.0 + 2.0 * mean) / share,
    )


def _mixed(gap: Floats, c: Floats, term: Callable[[Floats], Floats]) -> Floats:
    """(lambda^2 f(lambda) - c^2 f(c)) / (lambda^2 - c^2), evaluated slightly off the removable pole at c = lambda."""
    c = np.where(np.abs(c / gap - 1.0) < 1e-4, gap * (1.0 - 1e-4), c)
    return np.asarray((gap**2 * term(gap) - c**2 * term(c)) / (gap**2 - c**2))
