"""The problem of one contact with the rate-distortion curve of the device's own update.

The paper bounds the energy that k entries miss by (1 - k/s) |x|^2, as if all entries were equal. A device holds x and
knows the share C of |x|^2 in its k largest entries. An entry costs the bits of its coded index and value.
Each number of entries and width of values gives a point (bits, C), and only the upper hull matters. The
problem of a contact, with A bits sent over the contact time tau at power p(A) = (2^(A / (tau B)) - 1) / g, is

    minimise  -3 V theta |x|^2 C(A) + q tau p(A)

C is concave and p convex, so the first-order condition has a closed form on every segment.
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
    """A width of values: the coded bits per value, and the share of energy that quantisation loses.

    Both are given for every number of entries in the profile except 0.
    """

    value_bits: int
    bits: Floats
    lost: Floats


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The upper hull of captured energy over bits, starting at (0, 0)."""

    bits: Floats
    captured: Floats

    @cached_property
    def slopes(self) -> Floats:
        """The share captured per bit on each segment, in falling order."""
        return np.diff(self.captured) / np.diff(self.bits)

    @cached_property
    def log_slopes(self) -> Floats:
        return np.log(self.slopes)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A device's view of its own update: the share of |x|^2 in its largest entries, and the cost of their values."""

    kept: Floats  # numbers of entries, from 0 to all
    captured: Floats
    widths: Sequence[Width]
    overhead_bits: float = 0.0  # fixed bits per message

    @cached_property
    def message_bits(self) -> Floats:
        """The bits of a message for each width (rows) and number of entries; 0 for no entries."""
        numbers = self.kept[1:]
        fixed_and_indices = self.overhead_bits + index_bits(numbers, int(self.kept[-1]))
        rows = np.zeros((len(self.widths), len(self.kept)))
        rows[:, 1:] = fixed_and_indices + numbers * np.stack([width.bits for width in self.widths])
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


def uniform_profile(entries: int, overhead_bits: float = 0.0) -> Profile:
    """The profile behind the paper's bound: k of s entries hold k/s of the energy; values have 32 bits."""
    kept = np.append(0.0, np.unique(np.geomspace(1, entries, 64).astype(np.int64))).astype(np.float64)
    plain = Width(value_bits=32, bits=np.full(len(kept) - 1, 32.0), lost=np.zeros(len(kept) - 1))
    return Profile(kept=kept, captured=kept / entries, widths=(plain,), overhead_bits=overhead_bits)


def index_bits(kept: Floats, entries: int) -> Floats:
    """s H(k / s) bits: the entropy of k random indices out of s."""
    share = np.clip(np.asarray(kept, np.float64) / entries, 0.0, 1.0)
    return -entries * (_x_log2_x(share) + _x_log2_x(1.0 - share))


def _x_log2_x(share: Floats) -> Floats:
    return np.asarray(share * np.log2(np.where(share > 0, share, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    entries: int
    value_bits: int
    bits: float  # as expected


def choose(of: Profile, bits: float) -> Choice:
    """The number of entries and the width that capture most with ``bits``."""
    best, most = Choice(entries=0, value_bits=32, bits=0.0), 0.0
    # Near k = s more entries may cost fewer bits, so take the last affordable number.
    indices = len(of.kept) - 1 - (of.message_bits <= bits)[:, ::-1].argmax(1)
    for width, costs, shares, index in zip(of.widths, of.message_bits, of.arriving, indices.tolist(), strict=True):
        if index == 0:
            continue
        ahead = slice(index, index + 2)
        entries = int(np.interp(bits, costs[ahead], of.kept[ahead])) if index + 1 < len(costs) else int(of.kept[-1])
        share = float(np.interp(entries, of.kept, shares))
        if share > most:
            cost = min(float(np.interp(entries, of.kept, costs)), bits)
            best, most = Choice(entries=entries, value_bits=width.value_bits, bits=cost), share
    return best


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One contact: a curve, the value of capturing all of it, and the radio. The price of a joule is q / V.

    ``value`` is 3 theta |x|^2.
    """

    curve: Curve
    value: float
    contact_s: float
    gain_per_watt: float
    bandwidth_hz: float
    max_power_watts: float

    @cached_property
    def max_bits(self) -> float:
        """All bits of the curve, or the capacity at full power."""
        hertz_s = self.contact_s * self.bandwidth_hz
        return min(float(self.curve.bits[-1]), hertz_s * math.log1p(self.max_power_watts * self.gain_per_watt) / _LN2)

    @cached_property
    def full_power_watts(self) -> float:
        return self.power_for(self.max_bits)

    @property
    def usable_joules(self) -> float:
        return self.contact_s * self.full_power_watts

    @property
    def worth(self) -> float:
        """The highest price at which full power is optimal."""
        slope = float(self.curve.slopes[np.searchsorted(self.curve.bits[1:-1], self.max_bits)])
        return self.value * slope * self.bandwidth_hz / ((self.full_power_watts + 1.0 / self.gain_per_watt) * _LN2)

    @cached_property
    def _log_levels(self) -> Floats:
        """log(value c B g / ln 2) of every segment, and infinity after the last."""
        levels = self.curve.log_slopes + math.log(self.value * self.bandwidth_hz * self.gain_per_watt / _LN2)
        return np.concatenate([levels, [math.inf]])

    @cached_property
    def _log_cheapness(self) -> Floats:
        """Minus the log price at which each segment is used to its end, in rising order."""
        return self.curve.bits[1:] * (_LN2 / (self.contact_s * self.bandwidth_hz)) - self._log_levels[:-1]

    def best_bits(self, log_prices: Floats) -> Floats:
        """The optimal bits at each price. On a segment of slope c:  A = tau B log2(value c B g / (price ln 2))."""
        # Slopes fall, so the optimum lies on the first segment whose own optimum does not exceed it.
        first = self._log_cheapness.searchsorted(-log_prices, side="right")
        wanted = self.contact_s * self.bandwidth_hz / _LN2 * (self._log_levels[first] - log_prices)
        return np.minimum(np.maximum(wanted, self.curve.bits[first]), self.max_bits)

    def bits_at(self, log_price: float) -> float:
        """`best_bits` at one price. A price search needs about fifty, and for single numbers lists are faster."""
        ends, levels, bits, hertz_s, max_bits = self._as_lists
        first = bisect_right(ends, -log_price)
        best_bits = hertz_s / _LN2 * (levels[first] - log_price)
        if best_bits < bits[first]:
            best_bits = bits[first]
        return min(best_bits, max_bits)

    def power_watts(self, log_price: float) -> float:
        best_bits = self.bits_at(log_price)
        hertz_s = self.contact_s * self.bandwidth_hz
        return float(np.expm1(_LN2 * best_bits / hertz_s)) / self.gain_per_watt if best_bits > 0 else 0.0

    @cached_property
    def _as_lists(self) -> tuple[list[float], list[float], list[float], float, float]:
        """What `bits_at` reads: ends and levels of the segments, bits, tau B and the most bits."""
        numbers = self._log_cheapness.tolist(), self._log_levels.tolist(), self.curve.bits.tolist()
        return (*numbers, self.contact_s * self.bandwidth_hz, self.max_bits)

    def power_for(self, bits: float) -> float:
        """The power, in watts, that sends ``bits`` in the whole contact."""
        return power_watts(
            bits, contact_s=self.contact_s, gain_per_watt=self.gain_per_watt, bandwidth_hz=self.bandwidth_hz
        )

    def worthwhile_bits(self, power_watts: float, log_price: float) -> float:
        """The bits worth sending at a power while the contact lasts: value c >= price p / rate."""
        rate_bps = self.bandwidth_hz * math.log1p(power_watts * self.gain_per_watt) / _LN2
        if rate_bps <= 0:
            return 0.0
        log_threshold = log_price + math.log(power_watts / rate_bps) - math.log(self.value)
        return float(self.curve.bits[np.count_nonzero(self.curve.log_slopes >= log_threshold)])

    def wanted_joules(self) -> list[float]:
        """The energy that the contact would use at each of `LOG_PRICES`, in joules."""
        exponent = _LN2 * self.best_bits(LOG_PRICES) / (self.contact_s * self.bandwidth_hz)
        joules: list[float] = (self.contact_s * np.expm1(exponent) / self.gain_per_watt).tolist()
        return joules


def power_watts(bits: float, *, contact_s: float, gain_per_watt: float, bandwidth_hz: float) -> float:
    """p = (2^(A / (tau B)) - 1) / g: the least power, in watts, that sends A bits."""
    return float(np.expm1(_LN2 * bits / (contact_s * bandwidth_hz))) / gain_per_watt if bits > 0 else 0.0


def _upper_hull(x: Floats, y: Floats) -> Ints:
    """Indices of the corners from left to right, up to the highest."""
    order = np.lexsort((-y, x))
    heights = y[order]
    # A corner is higher than every point to its left.
    order = order[np.append(True, heights[1:] > np.maximum.accumulate(heights)[:-1])]
    xs, ys = x[order].tolist(), y[order].tolist()
    corners: list[int] = []
    for new, (right, top) in enumerate(zip(xs, ys, strict=True)):
        # Drop a corner if the line from its predecessor to the new point passes above or through it.
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            x0, y0 = xs[before], ys[before]
            if (top - y0) * (xs[last] - x0) < (ys[last] - y0) * (right - x0):
                break
            corners.pop()
        corners.append(new)
    return np.asarray(order[corners])
