"""The weight that finds itself (``control.weight = "auto"``).

Proposition 2 knows the weight V and the backlog q only by the ratio q / V, the price of a joule in units of the
convergence bound: p = clip(a / price - 1/g, 0, P) with a = 3 theta B |x|^2 / (s b ln 2). For one device the best way to
spend a budget over all its contacts (problem P0) has one price for all of them, the multiplier of the budget. So the
device looks for that price itself: at every contact it asks at which price this contact and those still to be expected
would together use up what is left of the budget, pays that price, and asks again at the next one.

What is to be expected is the device's own experience, kept in a handful of numbers: contacts so far, the energy they
could have used, and the prices at which full power would have been right, which are spread over decades and summed up
as a log-normal distribution. Errors in any of it show in what is left of the budget and are repaired at the next
contact; what one contact does not use stays in the account.

Worth and price have one unit, so models of any scale are treated alike; a device never spends more than it has left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wayfare.arrays import Floats
from wayfare.control.closed_form import full_update_power_watts
from wayfare.radio import Link

# How many standard deviations of the energy that later contacts could use are guarded against: energy that finds no
# contact any more is lost, while energy spent early costs little, for entries grow only with the logarithm of power.
CAUTION = 3.0

# Prices looked at: this far above and below what was seen, in logarithms, halved until twelve digits stand.
_REACH, _HALVINGS = 50.0, 48
# The largest exponent that is safe.
_LARGEST = 700.0

# Prices, as logarithms, at which contacts say what they would take where worth alone does not tell it.
_FIRST, _STEP, _PRICES = -60.0, 0.5, 241
LOG_PRICES: Floats = _FIRST + _STEP * np.arange(_PRICES, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a device has seen of its own contacts, as plain numbers."""

    contacts: int = 0
    usable_joules: float = 0.0  # sum of P tau: what the contacts could have used
    usable_squares: float = 0.0  # sum of (P tau)^2
    log_worth_mean: float = 0.0  # of the price up to which full power is right, weighted by usable energy
    log_worth_squares: float = 0.0  # sum of squared deviations from that mean, weighted alike
    # What the contacts would have taken at each of `LOG_PRICES`, from schemes that know.
    wanted_joules: tuple[float, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Experience:
        """The experience of a table, which may have lists where there were tuples."""
        return cls(**{**table, "wanted_joules": tuple(table["wanted_joules"])})

    def with_contact(self, usable_joules: float, worth: float, wanted_joules: Sequence[float] = ()) -> Experience:
        """One contact more; one with nothing to send, or no energy to send it with, says nothing of prices."""
        if usable_joules <= 0 or worth <= 0:
            usable_joules, away = 0.0, 0.0
        else:
            away = math.log(worth) - self.log_worth_mean
        total = self.usable_joules + usable_joules
        share = usable_joules / total if total > 0 else 0.0
        return Experience(
            contacts=self.contacts + 1,
            usable_joules=total,
            usable_squares=self.usable_squares + usable_joules**2,
            log_worth_mean=self.log_worth_mean + away * share,
            log_worth_squares=self.log_worth_squares + away**2 * share * self.usable_joules,
            wanted_joules=_sums(self.wanted_joules, wanted_joules),
        )

    def share_used(self, log_price: float) -> float:
        """The share of the usable energy that such contacts use at a price, E[min(worth / price, 1)].

        For log worth ~ N(m, v):  Phi(z) + exp(m - log price + v/2) Phi(-z - sqrt v),  z = (m - log price) / sqrt v

        Contacts whose energy falls otherwise with the price have said what they would have taken.
        """
        if self.wanted_joules:
            place = min(max((log_price - _FIRST) / _STEP, 0.0), _PRICES - 1.001)
            low = int(place)
            between = self.wanted_joules[low + 1] - self.wanted_joules[low]
            return (self.wanted_joules[low] + between * (place - low)) / max(self.usable_joules, 1e-300)
        above = self.log_worth_mean - log_price
        spread = math.sqrt(self.log_worth_squares / self.usable_joules) if self.usable_joules > 0 else 0.0
        if spread < 1e-6:
            return math.exp(min(above, 0.0))
        partly = _normal_cdf(-above / spread - spread)
        return _normal_cdf(above / spread) + math.exp(min(above + spread**2 / 2, _LARGEST)) * partly

    def expected_joules(self, round_: int, rounds: int) -> float:
        """What the contacts after a round could use, cautiously: F / (1 + caution^2 (1/d + 1/n)).

        F is the experience so far, drawn out. n is the number of contacts that would carry the same energy if all were
        alike, (sum e)^2 / sum e^2, and d = n (R - r) / r the number of such contacts still to come, so 1/d + 1/n is the
        variance of what comes about F, relative to F^2: the less is known, the less is kept back.
        """
        if self.usable_squares <= 0 or round_ >= rounds:
            return 0.0
        rest = (rounds - round_) / round_
        alike = self.usable_joules**2 / self.usable_squares
        return self.usable_joules * rest / (1.0 + CAUTION**2 * (1.0 + 1.0 / rest) / alike)


NO_EXPERIENCE = Experience()
"""Of a device before its first contact."""


class Wanted(Protocol):
    """What a contact would take at a price."""

    @property
    def contact_s(self) -> float:
        """How long it lasts."""
        ...

    @property
    def full_power_watts(self) -> float:
        """Beyond it power buys nothing."""
        ...

    @property
    def usable_joules(self) -> float:
        """The most energy that is of use."""
        ...

    @property
    def worth(self) -> float:
        """The price up to which full power is right."""
        ...

    def power_watts(self, log_price: float) -> float:
        """The best power at a price."""
        ...

    def wanted_joules(self) -> Sequence[float]:
        """The energy at each of `LOG_PRICES`; empty where it is min(worth / price, 1) of what is usable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One contact as the rule sees it."""

    contact_s: float
    inverse_gain_watts: float  # 1/g
    full_power_watts: float  # P: beyond it power buys nothing
    level_watts: float  # a: the power level p + 1/g at a price of 1

    @property
    def usable_joules(self) -> float:
        """The most energy that is of use."""
        return self.contact_s * self.full_power_watts

    @property
    def worth(self) -> float:
        """The price up to which full power is right."""
        return self.level_watts / (self.full_power_watts + self.inverse_gain_watts)

    def power_watts(self, log_price: float) -> float:
        """Proposition 2 at a price."""
        level_watts = math.exp(min(math.log(self.level_watts) - log_price, _LARGEST))
        return min(max(level_watts - self.inverse_gain_watts, 0.0), self.full_power_watts)

    def wanted_joules(self) -> Sequence[float]:
        """Worth tells it all."""
        return ()


def demand(
    link: Link, *, contact_s: float, gain_per_watt: float, staleness_rounds: int, update_norm_sq: float
) -> Demand | None:
    """a = 3 theta B |x|^2 / (s b ln 2) and P of a contact; None if there is nothing to send or no way to send it."""
    value = 3.0 * staleness_rounds * update_norm_sq
    # An update that diverged has no worth that one could reckon with.
    if not (contact_s > 0 and gain_per_watt > 0 and 0 < value < math.inf):
        return None
    full_power_watts = full_update_power_watts(
        contact_s=contact_s,
        gain_per_watt=gain_per_watt,
        bandwidth_hz=link.bandwidth_hz,
        parameters=link.parameters,
        bits_per_entry=link.bits_per_entry,
        max_power_watts=link.max_power_watts,
        statistics_bits=link.statistics_bits,
    )
    return Demand(
        contact_s=contact_s,
        inverse_gain_watts=1.0 / gain_per_watt,
        full_power_watts=float(full_power_watts),
        level_watts=value * link.bandwidth_hz / (link.parameters * link.bits_per_entry * math.log(2.0)),
    )


def after_contact(experience: Experience, wanted: Wanted | None) -> Experience:
    """The experience with one contact more, in which a scheme would have taken so much, or nothing."""
    if wanted is None:
        return experience.with_contact(0.0, 0.0)
    return experience.with_contact(wanted.usable_joules, wanted.worth, wanted.wanted_joules())


def fitting_power_watts(
    wanted: Wanted, experience: Experience, *, left_joules: float, round_: int, rounds: int
) -> float:
    """The power of a contact at the price at which it and those to be expected use up what is left."""
    if left_joules <= 0:
        return 0.0
    return wanted.power_watts(
        fitting_log_price(wanted, experience, left_joules=left_joules, round_=round_, rounds=rounds)
    )


def fitting_log_price(wanted: Wanted, experience: Experience, *, left_joules: float, round_: int, rounds: int) -> float:
    """The price at which a contact and those to be expected use up what is left; -inf where there is enough for all.

    tau p(price) + expected_joules * share_used(price) = left;  the experience includes this contact.
    """
    expected_joules = experience.expected_joules(round_, rounds)
    if wanted.usable_joules + expected_joules <= left_joules:
        return -math.inf
    middle = math.log(wanted.worth)
    # Too cheap at the lower end, where both shares are 1; dear enough at the upper one.
    low = min(middle, experience.log_worth_mean) - _REACH
    high = max(middle, experience.log_worth_mean) + _REACH
    for _ in range(_HALVINGS):
        price = 0.5 * (low + high)
        used = wanted.contact_s * wanted.power_watts(price) + expected_joules * experience.share_used(price)
        low, high = (price, high) if used > left_joules else (low, price)
    return high


def _sums(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    if len(one) == 0 or len(other) == 0:
        return tuple(one or other)
    return tuple((np.asarray(one) + np.asarray(other)).tolist())


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
