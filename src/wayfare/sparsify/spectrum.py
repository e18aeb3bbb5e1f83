"""How the energy of an update is spread over its entries: what the k largest of them hold, without sorting them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats, Ints

# A vector is looked at in so many stretches, because layers differ; entries of a sample, and how many of its largest
# bound the tail. Tails are heavy: a few entries hold much of the energy, and no sample knows them, so all entries in
# the tail are looked at. The rest is even enough to be sampled.
STRETCHES = 8
_SAMPLE, _TAIL = 1 << 15, 64
# Numbers of entries at which the curve is given, equally far apart in the logarithm.
_POINTS = 64


@dataclass(frozen=True, slots=True)
class Ranked:
    """Magnitudes that stand for those of many entries, from the largest on, and how many entries there are to each."""

    magnitudes: Floats
    ranks: Floats

    def above(self, bounds: Floats) -> Floats:
        """How many entries reach each bound."""
        places = np.searchsorted(-self.magnitudes, -bounds, side="right")
        return np.append(0.0, self.ranks)[places]

    def at(self, ranks: Floats) -> Floats:
        """The magnitudes at some ranks."""
        places = np.searchsorted(self.ranks, ranks)
        return self.magnitudes[np.minimum(places, len(self.magnitudes) - 1)]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``captured[i]`` is the share of |x|^2 that the ``kept[i]`` largest entries hold; both begin at 0 and rise."""

    kept: Floats
    captured: Floats
    whole: Ranked
    stretches: list[Ranked]

    @property
    def entries(self) -> int:
        """All there are."""
        return int(self.kept[-1])


def spectrum(vector: Tensor) -> Spectrum:
    """The curve of a vector: its tail exactly, its body by an even sample if there is much of it."""
    if len(vector) < _SAMPLE:
        found = [_falling(piece.abs()) for piece in vector.tensor_split(min(STRETCHES, len(vector)))]
        weights = [np.ones(len(magnitudes)) for magnitudes in found]
    else:
        found, weights = _sampled(vector)
    stretches = [Ranked(own, np.cumsum(each)) for own, each in zip(found, weights, strict=True)]
    # Every stretch says how many entries, and how much energy, lie above bounds that are magnitudes of some stretch.
    bounds = np.unique(np.concatenate([own[_places(len(own))] for own in found]))[::-1]
    kept, captured = np.zeros(len(bounds)), np.zeros(len(bounds))
    for part, each in zip(stretches, weights, strict=True):
        above = np.searchsorted(-part.magnitudes, -bounds, side="right")
        kept += np.append(0.0, part.ranks)[above]
        captured += np.append(0.0, np.cumsum(np.square(part.magnitudes) * each))[above]
    kept[-1] = len(vector)
    captured /= captured[-1] if captured[-1] > 0 else 1.0
    points = np.unique(np.searchsorted(kept, np.geomspace(kept[0], kept[-1], _POINTS)).clip(max=len(kept) - 1))
    return Spectrum(np.append(0.0, kept[points]), np.append(0.0, captured[points]), Ranked(bounds, kept), stretches)


def _places(count: int) -> Ints:
    """Some places from the first to the last, equally far apart in the logarithm."""
    return np.unique(np.geomspace(1, count, _POINTS).astype(np.int64)) - 1


def _sampled(vector: Tensor) -> tuple[list[Floats], list[Floats]]:
    """Magnitudes of every stretch in falling order, tail and sample, and how many entries each stands for."""
    length = len(vector) // STRETCHES
    # A few entries at the end belong to no stretch; an odd stride does not fall into step with the sizes of layers.
    rows, stride = vector[: STRETCHES * length].view(STRETCHES, length), max(len(vector) // _SAMPLE, 1) | 1
    samples = _falling(rows[:, ::stride].abs())
    bounds = samples[:, _TAIL // STRETCHES]
    found, weights = [], []
    for tail, sample, bound in zip(_tails(rows, bounds), samples, bounds, strict=True):
        body = sample[sample <= bound]
        found.append(np.concatenate([tail, body]))
        weights.append(np.repeat([1.0, (length - len(tail)) / len(body)], [len(tail), len(body)]))
    return found, weights


def _tails(rows: Tensor, bounds: Floats) -> list[Floats]:
    """The magnitudes of every row beyond its bound, in falling order."""
    if rows.device.type == "cpu":
        return [_falling(_above(row, float(bound))) for row, bound in zip(rows, bounds, strict=True)]
    magnitude = rows.abs()
    beyond = magnitude > torch.as_tensor(bounds, dtype=rows.dtype, device=rows.device)[:, None]
    # One transfer for all rows: each would have to wait for the GPU.
    ends = np.cumsum(beyond.sum(1).cpu().numpy())
    return [np.sort(tail)[::-1] for tail in np.split(magnitude[beyond].double().cpu().numpy(), ends[:-1])]


def _above(vector: Tensor, bound: float) -> Tensor:
    """The magnitudes beyond a bound, piece by piece in the cache of a processor: that takes a fifth of the time."""
    pieces = []
    for piece in np.array_split(vector.numpy(), max(len(vector) // _SAMPLE, 1)):
        magnitude = np.abs(piece)
        pieces.append(magnitude[np.flatnonzero(magnitude > bound)])
    return torch.from_numpy(np.concatenate(pieces))


def _falling(values: Tensor) -> Floats:
    """In falling order, row by row."""
    return np.sort(values.cpu().numpy(), axis=-1).astype(np.float64)[..., ::-1]
