"""The energy spectrum of an update: the share of |x|^2 in its k largest entries, without a full sort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wayfare.arrays import Floats, Ints
from wayfare.sparsify import gpu
from wayfare.sparsify.mask_indices import first_indices
from wayfare.waiting import Arriving, fetched

# A vector is split into segments, because layers differ. A sample finds the start of the tail. Tails are heavy: a few
# entries hold much of the energy and no sample finds them, so every tail entry is read. The body is even enough to be
# sampled.
SEGMENTS = 8
_SAMPLE, _TAIL = 1 << 15, 64
# The index of the tail's bound in the sorted sample of a segment.
_BOUND = -1 - _TAIL // SEGMENTS
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
        indices = np.empty((len(self), len(bounds)), np.int64)
        edges = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for row, (start, end) in zip(indices, edges, strict=True):
            np.add(self.magnitudes[start:end].searchsorted(bounds), start, out=row)
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
        np.square(self.magnitudes, out=squares[:-1], dtype=np.float64)
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
        return self.sampled == 0 or bool(found[-SEGMENTS:].sum(dtype=np.float64) <= self.room)

    def bodies(self, found: Magnitudes) -> list[Magnitudes]:
        return [_body(sample) for sample in found[: SEGMENTS * self.sampled].reshape(SEGMENTS, self.sampled)]

    def segments(self, found: Magnitudes) -> Segments:
        """Equal to those of `_sampled`."""
        if self.sampled == 0:
            return _all_of(found)
        ends = SEGMENTS * self.sampled + np.cumsum([0, *found[-SEGMENTS:]]).astype(np.int64)
        tails = [found[start:end] for start, end in pairwise(ends.tolist())]
        tails = tails if self.has_sorted_tails else [np.sort(tail) for tail in tails]
        return _weighted(self.bodies(found), tails, self.length)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a GPU sent of a vector. A call computes the spectrum, in this or in another process."""

    found: Magnitudes
    layout: Layout

    def __call__(self) -> Spectrum:
        return _spectrum(self.layout.segments(self.found), self.layout.entries)


def spectrum(vector: Tensor) -> Spectrum:
    """The spectrum of a vector. The tail is exact; the body of a long vector is sampled."""
    if _is_on_gpu(vector):
        numbers, layout = _to_send(vector)
        return _seen(numbers.cpu().numpy()[: -_in_norm(vector)], layout, vector)()
    is_long = len(vector) >= _SAMPLE
    return _spectrum(_sampled(vector) if is_long else _all_of(vector.abs().numpy()), len(vector))


def norm_alone(vector: Tensor) -> Arriving[tuple[float, Callable[[], Spectrum]]]:
    """Start to read |x|^2 of a vector; its spectrum, if anything asks for it, is read later."""
    return fetched(squared_norm(vector)).then(lambda norm_sq: (float(norm_sq), partial(spectrum, vector)))


def norm_and_spectrum(vector: Tensor) -> Arriving[tuple[float, Callable[[], Spectrum]]]:
    """Start to read |x|^2 of a vector, and its spectrum on demand. Both leave a GPU in one transfer."""
    if not _is_on_gpu(vector):
        return norm_alone(vector)
    numbers, layout = _to_send(vector)
    in_norm = _in_norm(vector)

    def read(found: NDArray[Any]) -> tuple[float, Callable[[], Spectrum]]:
        norm = found[-in_norm:].copy().view(np.float64)
        return float(norm[0]), _seen(found[:-in_norm], layout, vector)

    return fetched(numbers).then(read)


def squared_norm(vector: Tensor) -> Tensor:
    """|x|^2, summed in double precision."""
    if gpu.has_kernels(vector):
        from wayfare.sparsify.gpu_kernels import squared_norm as in_one_pass

        return in_one_pass(vector)
    return vector.to(torch.float64, copy=True).square_().sum()


def _is_on_gpu(vector: Tensor) -> bool:
    return vector.device.type != "cpu"


def _spectrum(segments: Segments, entries: int) -> Spectrum:
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


def _all_of(magnitude: Magnitudes) -> Segments:
    pieces = np.array_split(magnitude, min(SEGMENTS, len(magnitude)))
    return _joined([piece[:0] for piece in pieces], [np.sort(piece) for piece in pieces], np.ones(len(pieces)))


def _rows(vector: Tensor) -> tuple[Tensor, int]:
    """The segments of a vector, and the stride of the sample.

    A few entries at the end belong to no segment. The stride is odd, so that it does not align with layer sizes.
    """
    length = len(vector) // SEGMENTS
    return vector[: SEGMENTS * length].view(SEGMENTS, length), max(len(vector) // _SAMPLE, 1) | 1


def _weighted(bodies: list[Magnitudes], tails: list[Magnitudes], length: int) -> Segments:
    """The segments of a sampled body and an exact tail each, of ``length`` entries."""
    weights = [(length - len(tail)) / len(body) for body, tail in zip(bodies, tails, strict=True)]
    return _joined(bodies, tails, np.array(weights))


def _joined(bodies: list[Magnitudes], tails: list[Magnitudes], weights: Floats) -> Segments:
    parts = [part for both in zip(bodies, tails, strict=True) for part in both]
    edges = np.cumsum([0, *map(len, parts)])
    starts, tails_from, ends = edges[:-1:2], edges[1::2], edges[2::2]
    return Segments(np.concatenate(parts), starts, ends, ends - tails_from, weights)


def _sampled(vector: Tensor) -> Segments:
    """On a CPU: the tail of every segment, and a sample of its body, in rising order."""
    rows, stride = _rows(vector)
    samples = np.sort(rows[:, ::stride].abs().numpy())
    bodies = [_body(sample) for sample in samples]
    tails = [np.sort(_above(row.numpy(), body[-1])) for row, body in zip(rows, bodies, strict=True)]
    return _weighted(bodies, tails, rows.shape[1])


def _to_send(vector: Tensor) -> tuple[Tensor, Layout]:
    """What a GPU sends in one transfer, in the order of a layout; then the bytes of |x|^2 as numbers of its type."""
    if len(vector) < _SAMPLE:
        return torch.cat([vector.abs(), _norm_bytes(vector)]), Layout(len(vector))
    rows, stride = _rows(vector)
    length, count = rows.shape[1], gpu.pieces(rows.shape[1], stride)
    # Twice the expected number; hardly ever too few if the sample represents its segment.
    room = 2 * gpu.pieces(-_BOUND * rows.numel(), count)
    has_kernels = gpu.has_kernels(vector)
    if has_kernels:
        # Sorting tails on the host would take longer than all of this.
        from wayfare.sparsify.gpu_kernels import norm_and_samples

        numbers = norm_and_samples(vector, SEGMENTS, stride, count + _BOUND, room)
    else:
        samples, tail, counts = _looked_at(rows, stride, room)
        numbers = torch.cat([samples.flatten(), tail, counts, _norm_bytes(vector)])
    return numbers, Layout(len(vector), length, count, room, has_kernels)


def _norm_bytes(vector: Tensor) -> Tensor:
    return squared_norm(vector).view(1).view(vector.dtype)


def _in_norm(vector: Tensor) -> int:
    """The numbers of a vector's type that have the bytes of a double."""
    return 8 // vector.element_size()


def _seen(found: Magnitudes, layout: Layout, vector: Tensor) -> Callable[[], Spectrum]:
    return Sight(found, layout) if layout.has_all_tails(found) else partial(_with_long_tails, found, layout, vector)


def _with_long_tails(found: Magnitudes, layout: Layout, vector: Tensor) -> Spectrum:
    """The spectrum if a GPU had no room for all tails: read them."""
    bodies, (rows, _) = layout.bodies(found), _rows(vector)
    tails = [np.sort(_above(row.cpu().numpy(), body[-1])) for row, body in zip(rows, bodies, strict=True)]
    return _spectrum(_weighted(bodies, tails, layout.length), layout.entries)


def _looked_at(rows: Tensor, stride: int, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted samples of segments; the first ``room`` magnitudes above the bound of their segment; their numbers.

    The numbers are floats, which hold every number up to the room exactly.
    """
    magnitude = rows.abs()
    samples = magnitude[:, ::stride].sort().values
    is_beyond = magnitude > samples[:, _BOUND, None]
    indices = first_indices(is_beyond.flatten(), room)
    return samples, magnitude.flatten().index_select(0, indices), is_beyond.sum(1, dtype=rows.dtype)


def _body(sample: Magnitudes) -> Magnitudes:
    """A sorted sample up to and including the bound."""
    return sample[: sample.searchsorted(sample[_BOUND], "right")]


def _above(row: Magnitudes, bound: np.floating) -> Magnitudes:
    """The magnitudes above a bound. Pieces fit into the CPU cache, which takes a fifth of the time."""
    pieces = []
    for piece in np.array_split(row, max(len(row) // _SAMPLE, 1)):
        magnitude = np.abs(piece)
        pieces.append(magnitude[np.flatnonzero(magnitude > bound)])
    return np.concatenate(pieces)
