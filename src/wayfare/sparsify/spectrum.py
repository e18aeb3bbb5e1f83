"""How the energy of an update is spread over its entries: what the k largest of them hold, without sorting them all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wayfare.arrays import Floats, Ints
from wayfare.sparsify.places import first_places

# A vector is looked at in so many stretches, because layers differ; entries of a sample, and how many of its largest
# bound the tail. Tails are heavy: a few entries hold much of the energy, and no sample knows them, so all entries in
# the tail are looked at. The rest is even enough to be sampled.
STRETCHES = 8
_SAMPLE, _TAIL = 1 << 15, 64
# Where the bound lies in the rising sample of a stretch.
_BOUND = -1 - _TAIL // STRETCHES
# Numbers of entries at which the curve is given, equally far apart in the logarithm.
_POINTS = 64

Magnitudes: TypeAlias = NDArray[np.floating]
Numbers = TypeVar("Numbers", Floats, Ints)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Magnitudes that stand for those of many entries, from the largest on, and how many entries there are to each."""

    magnitudes: Floats
    ranks: Floats
    in_stretches: Floats  # how many entries of every stretch (rows) there are to each

    def places(self, ranks: Floats) -> Ints:
        """Where the magnitudes are that some ranks have."""
        return np.minimum(self.ranks.searchsorted(ranks), len(self.magnitudes) - 1)

    def at(self, ranks: Floats) -> Floats:
        return self.magnitudes[self.places(ranks)]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Magnitudes of all stretches, one stretch after the other and each in rising order.

    The last ones of a stretch, its tail, stand for themselves alone; each of the others for ``weights`` entries.
    """

    magnitudes: Floats
    starts: Ints  # of each stretch among the magnitudes
    ends: Ints
    tails: Ints
    weights: Floats

    def __len__(self) -> int:
        return len(self.ends)

    def above(self, bounds: Floats) -> Floats:
        """How many entries of every stretch (rows) reach each bound."""
        return self.standing_for(self.reaching(bounds))

    def at(self, ranks: Floats) -> Floats:
        """The magnitudes of every stretch (rows) at some ranks, where 1 is the rank of its largest."""
        in_tail = np.minimum(ranks, self.tails[:, None])
        from_the_largest: Ints = np.ceil(in_tail + (ranks - in_tail) / self.weights[:, None]).astype(np.int64)
        places = np.maximum(self.ends[:, None] - np.maximum(from_the_largest, 1), self.starts[:, None])
        return self.magnitudes[places]

    def energies(self, bounds: Floats) -> Floats:
        """The sum of squares of all entries that reach each of some rising bounds."""
        return self.energies_from(self.reaching(bounds))

    def bounds(self) -> Floats:
        """Some magnitudes of every stretch, all of them in rising order; the smallest and largest are among them."""
        places = self.ends[:, None] - log_spaced(1, self.ends - self.starts, _POINTS).astype(np.int64)
        return different(np.sort(self.magnitudes[places], axis=None))

    def reaching(self, bounds: Floats) -> Ints:
        """The place of the first magnitude of every stretch (rows) that reaches each bound."""
        places = np.empty((len(self), len(bounds)), np.int64)
        edges = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for row, (start, end) in zip(places, edges, strict=True):
            np.add(self.magnitudes[start:end].searchsorted(bounds), start, out=row)
        return places

    def standing_for(self, places: Ints) -> Floats:
        """How many entries all magnitudes from some places of every stretch (rows) on stand for."""
        largest = self.ends[:, None] - places
        in_tail = np.minimum(largest, self.tails[:, None])
        return np.asarray(in_tail + self.weights[:, None] * (largest - in_tail))

    def energies_from(self, places: Ints) -> Floats:
        """The sum of their squares, for rising places."""
        squares = np.zeros(len(self.magnitudes) + 1)
        np.square(self.magnitudes, out=squares[:-1])
        for start, end, weight in zip(self.starts, self.ends - self.tails, self.weights, strict=True):
            squares[start:end] *= weight
        # From one place to the next; where no magnitude lies between them, `reduceat` gives that of the first.
        edges = np.concatenate([places, self.ends[:, None]], axis=1)
        between = np.add.reduceat(squares, edges.ravel()).reshape(edges.shape)[:, :-1]
        energies = np.where(edges[:, 1:] > edges[:, :-1], between, 0.0).sum(0)
        return np.cumsum(energies[::-1])[::-1]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``captured[i]`` is the share of |x|^2 that the ``kept[i]`` largest entries hold; both begin at 0 and rise."""

    kept: Floats
    captured: Floats
    whole: Ranked
    stretches: Stretches

    @property
    def entries(self) -> int:
        return int(self.kept[-1])


def spectrum(vector: Tensor) -> Spectrum:
    """The curve of a vector: its tail exactly, its body by an even sample if there is much of it."""
    stretches = _sampled(vector) if len(vector) >= _SAMPLE else _all_of(vector)
    # Every stretch says how many entries, and how much energy, lie above bounds that are magnitudes of some stretch.
    bounds = stretches.bounds()
    reaching = stretches.reaching(bounds)[:, ::-1]
    in_stretches = stretches.standing_for(reaching)
    whole = Ranked(bounds[::-1], in_stretches.sum(0), in_stretches)
    whole.ranks[-1] = len(vector)
    points = different(whole.places(log_spaced(whole.ranks[0], len(vector), _POINTS)))
    captured = stretches.energies_from(reaching[:, points[::-1]])[::-1]
    captured /= captured[-1] if captured[-1] > 0 else 1.0
    return Spectrum(_from_zero(whole.ranks[points]), _from_zero(captured), whole, stretches)


def different(rising: Numbers) -> Numbers:
    """Rising numbers, each of them once: `np.unique` looks for what is known here."""
    is_new = np.empty(len(rising), np.bool_)
    is_new[:1] = True
    np.not_equal(rising[1:], rising[:-1], out=is_new[1:])
    return rising[is_new]


def _from_zero(numbers: Floats) -> Floats:
    return np.concatenate([np.zeros(1), numbers])


def log_spaced(first: ArrayLike, last: ArrayLike, count: int) -> Floats:
    """Numbers equally far apart in the logarithm: those of `np.geomspace`, which takes most of its time to begin."""
    low, high = np.log10(first), np.log10(last)
    step = np.asarray((high - low) / (count - 1))
    spaced: Floats = np.power(10.0, np.arange(count) * step[..., None] + np.asarray(low)[..., None])
    spaced[..., 0], spaced[..., -1] = first, last
    return spaced


def _all_of(vector: Tensor) -> Stretches:
    pieces = np.array_split(vector.abs().cpu().numpy(), min(STRETCHES, len(vector)))
    return _joined([piece[:0] for piece in pieces], [np.sort(piece) for piece in pieces], np.ones(len(pieces)))


def _sampled(vector: Tensor) -> Stretches:
    """Of every stretch its tail, and a sample of all else."""
    length = len(vector) // STRETCHES
    # A few entries at the end belong to no stretch; an odd stride does not fall into step with the sizes of layers.
    rows, stride = vector[: STRETCHES * length].view(STRETCHES, length), max(len(vector) // _SAMPLE, 1) | 1
    look = _look_on_processor if rows.device.type == "cpu" else _look_on_gpu
    bodies, tails = look(rows, stride)
    weights = [(length - len(tail)) / len(body) for body, tail in zip(bodies, tails, strict=True)]
    return _joined(bodies, tails, np.array(weights))


def _joined(bodies: list[Magnitudes], tails: list[Magnitudes], weights: Floats) -> Stretches:
    parts = [part for both in zip(bodies, tails, strict=True) for part in both]
    edges = np.cumsum([0, *map(len, parts)])
    starts, tails_from, ends = edges[:-1:2], edges[1::2], edges[2::2]
    return Stretches(np.concatenate(parts, dtype=np.float64), starts, ends, ends - tails_from, weights)


def _look_on_processor(rows: Tensor, stride: int) -> tuple[list[Magnitudes], list[Magnitudes]]:
    """The sample up to its bound and the tail beyond it, of every row and in rising order."""
    samples = np.sort(rows[:, ::stride].abs().numpy())
    bodies = [_body(sample) for sample in samples]
    return bodies, [np.sort(_above(row.numpy(), body[-1])) for row, body in zip(rows, bodies, strict=True)]


def _look_on_gpu(rows: Tensor, stride: int) -> tuple[list[Magnitudes], list[Magnitudes]]:
    """The same; all that is found leaves a GPU together, so that the processor waits once."""
    samples = rows[:, ::stride].abs().sort().values
    magnitude = rows.abs()
    beyond = magnitude > samples[:, _BOUND, None]
    # Twice as many as are to be expected, and hardly ever too few where a sample stands for its stretch.
    room = -2 * _BOUND * magnitude.numel() // samples.shape[1]
    places = first_places(beyond.flatten(), room)
    counts = beyond.sum(1).clamp(max=room + 1).to(rows.dtype)
    found = torch.cat([samples.flatten(), magnitude.flatten().index_select(0, places), counts]).cpu().numpy()
    bodies = [_body(sample) for sample in found[: samples.numel()].reshape(samples.shape)]
    ends = samples.numel() + np.cumsum([0, *found[-len(rows) :]]).astype(np.int64)
    if ends[-1] <= samples.numel() + room:
        return bodies, [np.sort(found[start:end]) for start, end in pairwise(ends.tolist())]
    return bodies, [np.sort(row[tail].cpu().numpy()) for row, tail in zip(magnitude, beyond, strict=True)]


def _body(sample: Magnitudes) -> Magnitudes:
    """A rising sample up to the bound, and all that equals it."""
    return sample[: sample.searchsorted(sample[_BOUND], "right")]


def _above(row: Magnitudes, bound: np.floating) -> Magnitudes:
    """The magnitudes beyond a bound, piece by piece in the cache of a processor: that takes a fifth of the time."""
    pieces = []
    for piece in np.array_split(row, max(len(row) // _SAMPLE, 1)):
        magnitude = np.abs(piece)
        pieces.append(magnitude[np.flatnonzero(magnitude > bound)])
    return np.concatenate(pieces)
