"""The automatic weight (``control.weight = "auto"``).

Proposition 2 depends on the weight V and the backlog q only through q / V, the price of a joule in units of the
convergence bound: p = clip(a / price - 1/g, 0, P) with a = 3 theta B |x|^2 / (s b ln 2). For one device, the best way
to spend a budget over all its contacts (problem P0) has one price for all of them: the multiplier of the budget. So
the device searches for that price. At every contact it solves for the price at which this contact and the expected
later ones use up the remaining budget, applies it, and solves again at the next contact.

The device expects contacts as in its own past, kept in a few numbers: contacts so far, the energy they could have
used, and the prices at which full power would have been right. These prices span decades, so a log-normal
distribution summarises them. Errors show up in the remaining budget and are corrected at the next contact. Energy
that one contact does not use stays in the account.

Worth and price have the same unit, so the scale of the model does not matter. A device never overdraws its budget.
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

# Safety margin in standard deviations of the energy that later contacts could use. Energy left without a contact is
# lost; energy spent early costs little, because entries grow only with the logarithm of power.
CAUTION = 3.0

# Bisection over log prices: this far above and below the observed ones, to twelve digits.
_REACH, _HALVINGS = 50.0, 48
# The largest exponent that is safe.
_LARGEST = 700.0

# Log prices at which contacts tabulate their energy if it is not determined by worth.
_FIRST, _STEP, _PRICES = -60.0, 0.5, 241
LOG_PRICES: Floats = _FIRST + _STEP * np.arange(_PRICES, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Statistics of a device's own past contacts."""

    contacts: int = 0
    usable_joules: float = 0.0  # sum of P tau: energy that the contacts could have used
    usable_squares: float = 0.0  # sum of (P tau)^2
    log_worth_mean: float = 0.0  # log of the highest price for full power, weighted by usable energy
    log_worth_squares: float = 0.0  # weighted sum of squared deviations from that mean
    # Energy that the contacts would have used at each of `LOG_PRICES`; empty if worth determines it.
    wanted_joules: tuple[float, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Experience:
        """Read the experience from a table, in which lists may replace tuples."""
        return cls(**{**table, "wanted_joules": tuple(table["wanted_joules"])})

    def with_contact(self, usable_joules: float, worth: float, wanted_joules: Sequence[float] = ()) -> Experience:
        """Add one contact. A contact without an update or without usable energy only counts."""
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
        """The share of the usable energy that contacts use at a price, E[min(worth / price, 1)].

        For log worth ~ N(m, v):  Phi(z) + exp(m - log price + v/2) Phi(-z - sqrt v),  z = (m - log price) / sqrt v

        Contacts that follow another law have tabulated their energy in `wanted_joules`.
        """
        if self.wanted_joules:
            position = min(max((log_price - _FIRST) / _STEP, 0.0), _PRICES - 1.001)
            low = int(position)
            between = self.wanted_joules[low + 1] - self.wanted_joules[low]
            return (self.wanted_joules[low] + between * (position - low)) / max(self.usable_joules, 1e-300)
        above = self.log_worth_mean - log_price
        spread = math.sqrt(self.log_worth_squares / self.usable_joules) if self.usable_joules > 0 else 0.0
        if spread < 1e-6:
            return math.exp(min(above, 0.0))
        partly = _normal_cdf(-above / spread - spread)
        return _normal_cdf(above / spread) + math.exp(min(above + spread**2 / 2, _LARGEST)) * partly

    def expected_joules(self, round_: int, rounds: int) -> float:
        """A cautious estimate, in joules, of what later contacts could use: F / (1 + caution^2 (1/d + 1/n)).

        F extrapolates the experience so far. n = (sum e)^2 / sum e^2 is the effective number of past contacts, and
        d = n (R - r) / r that of future ones. So 1/d + 1/n is the relative variance of the estimate: the less the
        device knows, the less energy it keeps back.
        """
        if self.usable_squares <= 0 or round_ >= rounds:
            return 0.0
        rest = (rounds - round_) / round_
        alike = self.usable_joules**2 / self.usable_squares
        return self.usable_joules * rest / (1.0 + CAUTION**2 * (1.0 + 1.0 / rest) / alike)


NO_EXPERIENCE = Experience()
"""The experience before the first contact."""


class Wanted(Protocol):
    """The energy that a contact would use as a function of the price of a joule."""

    @property
    def contact_s(self) -> float: ...

    @property
    def full_power_watts(self) -> float:
        """The power beyond which nothing is gained."""
        ...

    @property
    def usable_joules(self) -> float:
        """The energy at full power for the whole contact."""
        ...

    @property
    def worth(self) -> float:
        """The highest price at which full power is optimal."""
        ...

    def power_watts(self, log_price: float) -> float:
        """The optimal power at a price."""
        ...

    def wanted_joules(self) -> Sequence[float]:
        """The energy at each of `LOG_PRICES`; empty if it is usable_joules * min(worth / price, 1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demand of one contact under Proposition 2."""

    contact_s: float
    inverse_gain_watts: float  # 1/g
    full_power_watts: float  # P: beyond it nothing is gained
    level_watts: float  # a: the power level p + 1/g at a price of 1

    @property
    def usable_joules(self) -> float:
        return self.contact_s * self.full_power_watts

    @property
    def worth(self) -> float:
        return self.level_watts / (self.full_power_watts + self.inverse_gain_watts)

    def power_watts(self, log_price: float) -> float:
        """Proposition 2: p = clip(a / price - 1/g, 0, P)."""
        level_watts = math.exp(min(math.log(self.level_watts) - log_price, _LARGEST))
        return min(max(level_watts - self.inverse_gain_watts, 0.0), self.full_power_watts)

    def wanted_joules(self) -> Sequence[float]:
        """Empty: worth determines the energy."""
        return ()


def demand(
    link: Link, *, contact_s: float, gain_per_watt: float, staleness_rounds: int, update_norm_sq: float
) -> Demand | None:
    """a = 3 theta B |x|^2 / (s b ln 2) and P of a contact, in watts; None if nothing can be sent."""
    value = 3.0 * staleness_rounds * update_norm_sq
    # A diverged update has no finite value.
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
    """Add a contact and its demand, if any, to the experience."""
    if wanted is None:
        return experience.with_contact(0.0, 0.0)
    return experience.with_contact(wanted.usable_joules, wanted.worth, wanted.wanted_joules())


def fitting_power_watts(
    wanted: Wanted, experience: Experience, *, left_joules: float, round_: int, rounds: int
) -> float:
    """The power of a contact, in watts, at the price of `fitting_log_price`."""
    if left_joules <= 0:
        return 0.0
    return wanted.power_watts(
        fitting_log_price(wanted, experience, left_joules=left_joules, round_=round_, rounds=rounds)
    )


def fitting_log_price(wanted: Wanted, experience: Experience, *, left_joules: float, round_: int, rounds: int) -> float:
    """The log price at which this contact and the expected later ones use up the remaining energy.

    Solves tau p(price) + expected_joules * share_used(price) = left. The experience includes this contact. The result
    is -inf if the energy suffices for all contacts at full power.
    """
    expected_joules = experience.expected_joules(round_, rounds)
    if wanted.usable_joules + expected_joules <= left_joules:
        return -math.inf
    middle = math.log(wanted.worth)
    # The lower end is too cheap (both shares are 1), the upper end expensive enough.
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
