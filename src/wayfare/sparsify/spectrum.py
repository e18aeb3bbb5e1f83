"""How the energy of an update is spread over its entries: what the k largest of them hold, without sorting them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats

# Entries of a sample, and how many of its largest bound the tail. Tails are heavy: a few entries hold much of the
# energy, and no sample knows them, so all entries in the tail are looked at. The rest is even enough to be sampled.
_SAMPLE, _TAIL = 1 << 16, 256
# Numbers of entries at which the curve is given, equally far apart in the logarithm.
_POINTS = 64


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``captured[i]`` is the share of |x|^2 that the ``kept[i]`` largest entries hold; both begin at 0 and rise.

    ``magnitudes`` are those of the tail and of the sample, from the largest on, and ``ranks`` how many entries there
    are down to each.
    """

    kept: Floats
    captured: Floats
    magnitudes: Floats
    ranks: Floats

    @property
    def entries(self) -> int:
        """All there are."""
        return int(self.kept[-1])

    def among(self, kept: Floats, count: int) -> Floats:
        """Magnitudes at ``count`` ranks, equally far apart, among the ``kept`` largest: a row for each of ``kept``."""
        ranks = np.multiply.outer(kept, (np.arange(count) + 0.5) / count)
        places = np.searchsorted(self.ranks, ranks)
        return self.magnitudes[np.minimum(places, len(self.magnitudes) - 1)]


def spectrum(vector: Tensor, norm_sq: float | None = None) -> Spectrum:
    """The curve of a vector: its tail exactly, its body by an even sample if there is much of it.

    ``norm_sq`` is |x|^2, for those who have it at hand.
    """
    # An odd stride does not fall into step with the sizes of layers, which are even as a rule.
    stride = max(len(vector) // _SAMPLE, 1) | 1
    sample = _falling(vector[::stride].abs())
    if stride > 1:
        bound = sample[_TAIL]
        tail, body = _falling(_above(vector, float(bound))), sample[sample <= bound]
        each = (len(vector) - len(tail)) / len(body)
        rest = float(vector.double().square().sum()) if norm_sq is None else norm_sq
        body_energy = float(np.square(body).sum()) * each
        scale = max(rest - float(np.square(tail).sum()), 0.0) / max(body_energy, 1e-300)
        found = np.concatenate([tail, body])
        energy = np.square(found) * np.repeat([1.0, scale], [len(tail), len(body)])
        weight = np.repeat([1.0, each], [len(tail), len(body)])
    else:
        found, energy, weight = sample, np.square(sample), np.ones(len(sample))
    kept, total = np.cumsum(weight), np.cumsum(energy * weight)
    points = np.unique(np.geomspace(1, len(energy), _POINTS).astype(np.int64)) - 1
    kept[-1] = len(vector)
    whole = total[-1] if total[-1] > 0 else 1.0
    return Spectrum(np.append(0.0, kept[points]), np.append(0.0, total[points] / whole), found, kept)


def _above(vector: Tensor, bound: float) -> Tensor:
    """The magnitudes beyond a bound; on a processor piece by piece, in its cache, which takes a fifth of the time."""
    if vector.device.type != "cpu":
        magnitude = vector.abs()
        return magnitude[magnitude > bound]
    pieces = []
    for piece in np.array_split(vector.numpy(), max(len(vector) // _SAMPLE, 1)):
        magnitude = np.abs(piece)
        pieces.append(magnitude[np.flatnonzero(magnitude > bound)])
    return torch.from_numpy(np.concatenate(pieces))


def _falling(values: Tensor) -> Floats:
    """In falling order; sorted where they lie."""
    if values.device.type != "cpu":
        return np.asarray(values.sort(descending=True).values.cpu().numpy(), np.float64)
    return np.sort(values.numpy()).astype(np.float64)[::-1]
