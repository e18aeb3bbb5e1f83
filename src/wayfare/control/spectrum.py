"""The energy spectrum of an update, computed from what is known of its magnitudes.

It does without PyTorch, so that processes which compute profiles beside a run start in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wayfare.arrays import Floats, Ints

SEGMENTS = 8
# Sampled entries of a vector that are in its tail.
_TAIL = 64
# The index of the tail's bound in the sorted sample of a segment.
BOUND = -1 - _TAIL // SEGMENTS
# Log-spaced points of the curve.
_POINTS = 64

Magnitudes: TypeAlias = NDArray[np.floating]
Numbers = TypeVar("Numbers", Magnitudes, Floats, Ints)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Representative magnitudes in falling order, with the number of entries of at least each."""

    magnitudes: Magnitudes
    ranks: Floats
    in_segments: Floats  # the same number for every segment (rows)

    def indices(self, ranks: Floats) -> Ints:
        """The indices of the magnitudes at some ranks."""
        return np.minimum(self.ranks.searchsorted(ranks), len(self.magnitudes) - 1)

    def at(self, ranks: Floats) -> Magnitudes:
        return self.magnitudes.take(self.indices(ranks))


@dataclass(frozen=True, slots=True)
class Segments:
    """Magnitudes of all segments, one after the other, each in rising order.

    Each magnitude in a segment's tail represents one entry; each of the others represents ``weights`` entries.
    """

    magnitudes: Magnitudes
    starts: Ints  # of each segment among the magnitudes
    ends: Ints
    tails: Ints
    weights: Floats

    def __len__(self) -> int:
        return len(self.ends)

    def above(self, bounds: Magnitudes) -> Floats:
        """The number of entries of every segment (rows) at or above each bound."""
        return self.entries_from(self.reaching(bounds))

    def at(self, ranks: Floats) -> Magnitudes:
        """The magnitudes of every segment (rows) at some ranks; the largest has rank 1."""
        in_tail = np.minimum(ranks, self.tails[:, None])
        # In place, and in doubles, which hold these integers.
        from_the_largest = ranks - in_tail
        from_the_largest /= self.weights[:, None]
        from_the_largest += in_tail
        np.maximum(np.ceil(from_the_largest, out=from_the_largest), 1.0, out=from_the_largest)
        indices = np.maximum(self.ends[:, None] - from_the_largest, self.starts[:, None])
        return self.magnitudes.take(indices.astype(np.int64))

    def energies(self, bounds: Magnitudes) -> Floats:
        """The sum of squares of all entries at or above each of some rising bounds."""
        return self.energies_from(self.reaching(bounds))

    def bounds(self) -> Magnitudes:
        """Some magnitudes of every segment, including its smallest and largest, in rising order."""
        indices = self.ends[:, None] - log_spaced(1, self.ends - self.starts, _POINTS).astype(np.int64)
        return distinct(np.sort(self.magnitudes.take(indices), axis=None))

    def reaching(self, bounds: Magnitudes) -> Ints:
        """The index of the first magnitude of every segment (rows) at or above each bound."""
        indices, magnitudes = np.empty((len(self), len(bounds)), np.int64), self.magnitudes
        if magnitudes.dtype == bounds.dtype == np.float32:
            # Positive floats have the order of their bits, and integers are faster to compare.
            magnitudes, bounds = magnitudes.view(np.int32), bounds.view(np.int32)
        edges = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for row, (start, end) in zip(indices, edges, strict=True):
            np.add(magnitudes[start:end].searchsorted(bounds), start, out=row)
        return indices

    def entries_from(self, indices: Ints) -> Floats:
        """The number of entries that the magnitudes from each index of every segment (rows) on represent."""
        largest = self.ends[:, None] - indices
        in_tail = np.minimum(largest, self.tails[:, None])
        return np.asarray(in_tail + self.weights[:, None] * (largest - in_tail))

    def energies_from(self, indices: Ints) -> Floats:
        """The sum of squares of the entries from each of some rising indices on."""
        squares = np.empty(len(self.magnitudes) + 1)
        squares[-1] = 0.0
        # Two passes take less time than one that also converts.
        squares[:-1] = self.magnitudes
        squares *= squares
        bodies = zip(self.starts.tolist(), (self.ends - self.tails).tolist(), self.weights.tolist(), strict=True)
        for start, end, weight in bodies:
            squares[start:end] *= weight
        # Sums from one index to the next. `reduceat` returns the first element of an empty range, not 0.
        edges = np.concatenate([indices, self.ends[:, None]], axis=1)
        between = np.add.reduceat(squares, edges.ravel()).reshape(edges.shape)[:, :-1]
        energies = np.where(edges[:, 1:] > edges[:, :-1], between, 0.0).sum(0)
        return np.cumsum(energies[::-1])[::-1]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``captured[i]`` is the share of |x|^2 in the ``kept[i]`` largest entries. Both start at 0 and rise."""

    kept: Floats
    captured: Floats
    whole: Ranked
    segments: Segments

    @property
    def entries(self) -> int:
        return int(self.kept[-1])


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of what a GPU sends of a vector: sorted samples of segments, their tails, and the numbers of tails.

    Of a short vector it sends all magnitudes.
    """

    entries: int  # of the vector
    length: int = 0  # entries of a segment
    sampled: int = 0  # of them; 0 in a short vector
    room: int = 0  # for tails
    has_sorted_tails: bool = True

    def has_all_tails(self, found: Magnitudes) -> bool:
        return self.sampled == 0 or sum(found[-SEGMENTS:].tolist()) <= self.room

    def bodies(self, found: Magnitudes) -> list[Magnitudes]:
        return [body_of(sample) for sample in found[: SEGMENTS * self.sampled].reshape(SEGMENTS, self.sampled)]

    def segments(self, found: Magnitudes) -> Segments:
        """Equal to those of `_sampled`."""
        if self.sampled == 0:
            return all_of(found)
        ends = accumulate(map(int, found[-SEGMENTS:].tolist()), initial=SEGMENTS * self.sampled)
        tails = [found[start:end] for start, end in pairwise(ends)]
        tails = tails if self.has_sorted_tails else [np.sort(tail) for tail in tails]
        return weighted(self.bodies(found), tails, self.length)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a GPU sent of a vector. A call computes the spectrum, in this or in another process."""

    found: Magnitudes
    layout: Layout

    def __call__(self) -> Spectrum:
        return spectrum_of(self.layout.segments(self.found), self.layout.entries)


def spectrum_of(segments: Segments, entries: int) -> Spectrum:
    """The spectrum of a vector with this many entries."""
    # Count the entries and energy of every segment above common bounds.
    bounds = segments.bounds()
    reaching = segments.reaching(bounds)[:, ::-1]
    in_segments = segments.entries_from(reaching)
    whole = Ranked(bounds[::-1], in_segments.sum(0), in_segments)
    whole.ranks[-1] = entries
    points = distinct(whole.indices(log_spaced(whole.ranks[0], entries, _POINTS)))
    captured = segments.energies_from(reaching[:, points[::-1]])[::-1]
    captured /= captured[-1] if captured[-1] > 0 else 1.0
    return Spectrum(_from_zero(whole.ranks[points]), _from_zero(captured), whole, segments)


def distinct(rising: Numbers) -> Numbers:
    """The distinct values of a sorted array. `np.unique` would sort again."""
    is_new = np.empty(len(rising), np.bool_)
    is_new[:1] = True
    np.not_equal(rising[1:], rising[:-1], out=is_new[1:])
    return rising[is_new]


def _from_zero(numbers: Floats) -> Floats:
    return np.concatenate([np.zeros(1), numbers])


def log_spaced(first: ArrayLike, last: ArrayLike, count: int) -> Floats:
    """Log-spaced numbers, equal to those of `np.geomspace`, whose overhead is large."""
    low, high = np.log10(first), np.log10(last)
    step = np.asarray((high - low) / (count - 1))
    spaced: Floats = np.power(10.0, np.arange(count) * step[..., None] + np.asarray(low)[..., None])
    spaced[..., 0], spaced[..., -1] = first, last
    return spaced


def all_of(magnitude: Magnitudes) -> Segments:
    """The segments of a short vector, whose magnitudes are all known."""
    pieces = np.array_split(magnitude, min(SEGMENTS, len(magnitude)))
    return _joined([piece[:0] for piece in pieces], [np.sort(piece) for piece in pieces], np.ones(len(pieces)))


def weighted(bodies: list[Magnitudes], tails: list[Magnitudes], length: int) -> Segments:
    """The segments of a sampled body and an exact tail each, of ``length`` entries."""
    weights = [(length - len(tail)) / len(body) for body, tail in zip(bodies, tails, strict=True)]
    return _joined(bodies, tails, np.array(weights))


def _joined(bodies: list[Magnitudes], tails: list[Magnitudes], weights: Floats) -> Segments:
    parts = [part for both in zip(bodies, tails, strict=True) for part in both]
    edges = np.cumsum([0, *map(len, parts)])
    starts, tails_from, ends = edges[:-1:2], edges[1::2], edges[2::2]
    return Segments(np.concatenate(parts), starts, ends, ends - tails_from, weights)


def body_of(sample: Magnitudes) -> Magnitudes:
    """A sorted sample up to and including the bound."""
    return sample[: sample.searchsorted(sample[BOUND], "right")]
