"""The problem of one contact when the device looks at its own update: what is each bit worth?

The paper bounds what k entries leave behind by (1 - k/s) |x|^2, as if all entries were alike. A device holds x and sees
the share C of |x|^2 that its k largest entries capture; and an entry costs what its index and value take when coded.
Over all numbers of entries and bits of values this gives points (bits, C), of which only the upper hull matters. The
problem of a contact is then, with A bits sent in the whole contact time tau at power p(A) = (2^(A / (tau B)) - 1) / g,

    minimise  -3 V theta |x|^2 C(A) + q tau p(A)

C is concave and p convex, so the first order condition decides, segment by segment in closed form.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.control.auto_weight import LOG_PRICES

_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Values of some bits: what one costs after coding, and the share of its energy that quantisation loses.

    Both for every number of entries that is looked at, without 0.
    """

    value_bits: int
    bits: Floats
    lost: Floats


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The upper hull of what can be captured with so many bits; it begins with nothing for nothing."""

    bits: Floats
    captured: Floats

    @cached_property
    def slopes(self) -> Floats:
        """The share captured by a bit, segment by segment; it falls."""
        return np.diff(self.captured) / np.diff(self.bits)

    @cached_property
    def log_slopes(self) -> Floats:
        return np.log(self.slopes)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a device sees of its own update: the share of |x|^2 in its largest entries, and what their values cost."""

    kept: Floats  # numbers of entries, from 0 to all
    captured: Floats
    widths: Sequence[Width]
    overhead_bits: float = 0.0  # of a message, whatever is in it

    @cached_property
    def message_bits(self) -> Floats:
        """What a message takes, for each width (rows) and number of entries; nothing for none."""
        numbers = self.kept[1:]
        places = self.overhead_bits + index_bits(numbers, int(self.kept[-1]))
        rows = np.zeros((len(self.widths), len(self.kept)))
        rows[:, 1:] = places + numbers * np.stack([width.bits for width in self.widths])
        return rows

    @cached_property
    def arriving(self) -> Floats:
        """The share of |x|^2 that arrives, for each width and number of entries."""
        rows = np.zeros((len(self.widths), len(self.kept)))
        rows[:, 1:] = self.captured[1:] * (1.0 - np.stack([width.lost for width in self.widths]))
        return rows

    @cached_property
    def curve(self) -> Curve:
        """The hull over all numbers of entries and all widths."""
        bits, captured = self.message_bits.ravel(), self.arriving.ravel()
        chosen = _upper_hull(bits, captured)
        return Curve(bits=bits[chosen], captured=captured[chosen])

    def only(self, value_bits: int) -> Profile:
        return replace(self, widths=[width for width in self.widths if width.value_bits == value_bits])


def alike(entries: int, overhead_bits: float = 0.0) -> Profile:
    """What the paper's bound supposes: k of s entries hold k/s of the energy; values have 32 bits."""
    kept = np.append(0.0, np.unique(np.geomspace(1, entries, 64).astype(np.int64))).astype(np.float64)
    plain = Width(value_bits=32, bits=np.full(len(kept) - 1, 32.0), lost=np.zeros(len(kept) - 1))
    return Profile(kept=kept, captured=kept / entries, widths=(plain,), overhead_bits=overhead_bits)


def index_bits(kept: Floats, entries: int) -> Floats:
    """s H(k / s): what it takes at least to say which entries are kept, if their places are random."""
    share = np.clip(np.asarray(kept, np.float64) / entries, 0.0, 1.0)
    return -entries * (_times_its_log2(share) + _times_its_log2(1.0 - share))


def _times_its_log2(share: Floats) -> Floats:
    return np.asarray(share * np.log2(np.where(share > 0, share, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    entries: int
    value_bits: int
    bits: float  # as expected


def choose(of: Profile, bits: float) -> Choice:
    """The number of entries and the width that capture most with so many bits."""
    best, most = Choice(entries=0, value_bits=32, bits=0.0), 0.0
    for width, costs, shares in zip(of.widths, of.message_bits, of.arriving, strict=True):
        # Where nearly all entries are kept, more of them may cost less: the last number that can be paid counts.
        place = int(np.flatnonzero(costs <= bits)[-1])
        if place == 0:
            continue
        ahead = slice(place, place + 2)
        entries = int(np.interp(bits, costs[ahead], of.kept[ahead])) if place + 1 < len(costs) else int(of.kept[-1])
        share = float(np.interp(entries, of.kept, shares))
        if share > most:
            cost = min(float(np.interp(entries, of.kept, costs)), bits)
            best, most = Choice(entries=entries, value_bits=width.value_bits, bits=cost), share
    return best


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One contact: a curve, what capturing all of it is worth, and the radio. A price is that of a joule, q / V.

    ``value`` is 3 theta |x|^2.
    """

    curve: Curve
    value: float
    contact_s: float
    gain_per_watt: float
    bandwidth_hz: float
    max_power_watts: float

    @cached_property
    def most_bits(self) -> float:
        """All that there is, or what full power carries."""
        hertz_s = self.contact_s * self.bandwidth_hz
        return min(float(self.curve.bits[-1]), hertz_s * math.log1p(self.max_power_watts * self.gain_per_watt) / _LN2)

    @cached_property
    def full_power_watts(self) -> float:
        return self.power_for(self.most_bits)

    @property
    def usable_joules(self) -> float:
        return self.contact_s * self.full_power_watts

    @property
    def worth(self) -> float:
        """The price up to which full power is right."""
        slope = float(self.curve.slopes[np.searchsorted(self.curve.bits[1:-1], self.most_bits)])
        return self.value * slope * self.bandwidth_hz / ((self.full_power_watts + 1.0 / self.gain_per_watt) * _LN2)

    @cached_property
    def _log_levels(self) -> Floats:
        """log(value c B g / ln 2) of every segment, and beyond the last one more than any price."""
        levels = self.curve.log_slopes + math.log(self.value * self.bandwidth_hz * self.gain_per_watt / _LN2)
        return np.append(levels, math.inf)

    @cached_property
    def _log_cheapness(self) -> Floats:
        """Minus the logarithm of the price at which each segment is taken to its end; it rises."""
        return self.curve.bits[1:] * (_LN2 / (self.contact_s * self.bandwidth_hz)) - self._log_levels[:-1]

    def best_bits(self, log_prices: Floats) -> Floats:
        """The minimiser at each price. On a segment of slope c:  A = tau B log2(value c B g / (price ln 2))."""
        # Slopes fall, so the first segment whose own optimum does not lie beyond it holds the optimum.
        first = self._log_cheapness.searchsorted(-log_prices, side="right")
        wanted = self.contact_s * self.bandwidth_hz / _LN2 * (self._log_levels[first] - log_prices)
        return np.minimum(np.maximum(wanted, self.curve.bits[first]), self.most_bits)

    def power_watts(self, log_price: float) -> float:
        # A search for a price asks for it some fifty times, and one number is found faster in a list than in an array.
        ends, levels, bits = self._as_lists
        first = bisect_right(ends, -log_price)
        wanted = self.contact_s * self.bandwidth_hz / _LN2 * (levels[first] - log_price)
        return self.power_for(min(max(wanted, bits[first]), self.most_bits))

    @cached_property
    def _as_lists(self) -> tuple[list[float], list[float], list[float]]:
        return self._log_cheapness.tolist(), self._log_levels.tolist(), self.curve.bits.tolist()

    def power_for(self, bits: float) -> float:
        """The power that brings so many bits through in the whole contact."""
        return power_watts(
            bits, contact_s=self.contact_s, gain_per_watt=self.gain_per_watt, bandwidth_hz=self.bandwidth_hz
        )

    def worthwhile_bits(self, power_watts: float, log_price: float) -> float:
        """How many bits are worth sending at a power, if the contact lasts: value c >= price p / rate."""
        rate_bps = self.bandwidth_hz * math.log1p(power_watts * self.gain_per_watt) / _LN2
        if rate_bps <= 0:
            return 0.0
        log_least = log_price + math.log(power_watts / rate_bps) - math.log(self.value)
        return float(self.curve.bits[np.count_nonzero(self.curve.log_slopes >= log_least)])

    def wanted_joules(self) -> list[float]:
        """The energy that the contact would take, at every price of `LOG_PRICES`."""
        exponent = _LN2 * self.best_bits(LOG_PRICES) / (self.contact_s * self.bandwidth_hz)
        joules: list[float] = (self.contact_s * np.expm1(exponent) / self.gain_per_watt).tolist()
        return joules


def power_watts(bits: float, *, contact_s: float, gain_per_watt: float, bandwidth_hz: float) -> float:
    """p = (2^(A / (tau B)) - 1) / g: the least power that brings so many bits through."""
    return float(np.expm1(_LN2 * bits / (contact_s * bandwidth_hz)) / gain_per_watt) if bits > 0 else 0.0


def _upper_hull(x: Floats, y: Floats) -> Ints:
    """Places of the corners, from left to right, as long as they rise."""
    order = np.lexsort((-y, x))
    heights = y[order]
    # Only what lies higher than all to its left can be a corner.
    order = order[np.append(True, heights[1:] > np.maximum.accumulate(heights)[:-1])]
    xs, ys = x[order].tolist(), y[order].tolist()
    corners: list[int] = []
    for new, (right, top) in enumerate(zip(xs, ys, strict=True)):
        # A corner goes where the way from the one before it to the new one passes above it, or through it.
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            x0, y0 = xs[before], ys[before]
            if (top - y0) * (xs[last] - x0) < (ys[last] - y0) * (right - x0):
                break
            corners.pop()
        corners.append(new)
    return np.asarray(order[corners])
