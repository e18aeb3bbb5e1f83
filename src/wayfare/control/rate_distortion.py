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
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Values of some bits: what one costs after coding, and the share of its energy that quantisation loses."""

    value_bits: int
    bits: float
    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The upper hull of what can be captured with so many bits; it begins with nothing for nothing."""

    bits: Floats
    captured: Floats
    kept: Floats  # entries at every corner
    value_bits: Ints  # bits of their values

    @property
    def slopes(self) -> Floats:
        """The share captured by a bit, segment by segment; it falls."""
        return np.diff(self.captured) / np.diff(self.bits)


def index_bits(kept: Floats, entries: int) -> Floats:
    """s H(k / s): what it takes at least to say which entries are kept, if their places are random."""
    share = np.clip(np.asarray(kept, np.float64) / entries, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return np.asarray(entries * np.nan_to_num(terms))


def curve(kept: Floats, captured: Floats, widths: Mapping[int, Width], overhead_bits: float = 0.0) -> Curve:
    """The hull over all numbers of entries and all widths; ``overhead_bits`` is what any message costs."""
    entries = int(kept[-1])
    positive = kept > 0
    numbers, shares = kept[positive], captured[positive]
    bits = [overhead_bits + index_bits(numbers, entries) + numbers * width.bits for width in widths.values()]
    points = np.stack(
        [
            np.concatenate([[0.0], *bits]),
            np.concatenate([[0.0], *(shares * (1 - width.lost) for width in widths.values())]),
            np.concatenate([[0.0], *[numbers] * len(widths)]),
            np.concatenate([[0.0], *(np.full(len(numbers), width.value_bits) for width in widths.values())]),
        ]
    )
    chosen = _upper_hull(points[0], points[1])
    return Curve(
        bits=points[0, chosen],
        captured=points[1, chosen],
        kept=points[2, chosen],
        value_bits=points[3, chosen].astype(np.int64),
    )


def best_bits(
    of: Curve,
    *,
    worth: float,
    backlog_joules: float,
    contact_s: float,
    gain_per_watt: float,
    bandwidth_hz: float,
    max_power_watts: float,
) -> float:
    """The minimiser; ``worth`` is 3 V theta |x|^2.

    On a segment of slope c:  A = tau B log2(worth c B g / (q ln 2)), within the segment and what full power carries.
    """
    capacity = contact_s * bandwidth_hz * math.log1p(max_power_watts * gain_per_watt) / math.log(2.0)
    most = min(float(of.bits[-1]), capacity)
    if worth <= 0 or most <= 0:
        return 0.0
    if backlog_joules <= 0:
        return most
    with np.errstate(over="ignore"):
        level = worth * of.slopes * bandwidth_hz * gain_per_watt / (backlog_joules * np.log(2.0))
    wanted = contact_s * bandwidth_hz * np.log2(np.maximum(level, 1e-300))
    # Slopes fall, so the first segment whose own optimum does not lie beyond it holds the optimum.
    inside = np.flatnonzero(wanted < of.bits[1:])
    if len(inside) == 0:
        return most
    first = int(inside[0])
    return float(min(max(wanted[first], of.bits[first], 0.0), most))


def power_watts(bits: float, *, contact_s: float, gain_per_watt: float, bandwidth_hz: float) -> float:
    """p = (2^(A / (tau B)) - 1) / g: the least power that brings so many bits through."""
    return float(np.expm1(np.log(2.0) * bits / (contact_s * bandwidth_hz)) / gain_per_watt) if bits > 0 else 0.0


def _upper_hull(x: Floats, y: Floats) -> Ints:
    """Places of the corners, from left to right, as long as they rise."""
    corners: list[int] = []
    for place in np.lexsort((-y, x)):
        if corners and (x[place] <= x[corners[-1]] or y[place] <= y[corners[-1]]):
            continue
        while len(corners) > 1 and _above(x, y, corners[-2], corners[-1], place):
            corners.pop()
        corners.append(int(place))
    return np.array(corners)


def _above(x: Floats, y: Floats, first: int, middle: int, last: int) -> bool:
    """Whether the way from the first to the last passes above the one between, or through it."""
    return bool((y[last] - y[first]) * (x[middle] - x[first]) >= (y[middle] - y[first]) * (x[last] - x[first]))
