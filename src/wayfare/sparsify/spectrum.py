"""How the energy of an update is spread over its entries: what the k largest of them hold, without sorting them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from wayfare.arrays import Floats

# Entries of a sample, and how many of its largest bound the tail. Tails are heavy: a few entries hold much of the
# energy, and no sample knows them, so all entries in the tail are looked at. The rest is even enough to be sampled.
_SAMPLE, _TAIL = 1 << 16, 256
# Numbers of entries at which the curve is given, equally far apart in the logarithm.
_POINTS = 96


@dataclass(frozen=True, slots=True)
class Spectrum:
    """``captured[i]`` is the share of |x|^2 that the ``kept[i]`` largest entries hold; both begin at 0 and rise."""

    kept: Floats
    captured: Floats

    @property
    def entries(self) -> int:
        """All there are."""
        return int(self.kept[-1])


def spectrum(vector: Tensor, norm_sq: float | None = None) -> Spectrum:
    """The curve of a vector: its tail exactly, its body by an even sample if there is much of it.

    ``norm_sq`` is |x|^2, for those who have it at hand.
    """
    # An odd stride does not fall into step with the sizes of layers, which are even as a rule.
    stride = max(len(vector) // _SAMPLE, 1) | 1
    sample = _falling(vector[::stride].abs())
    if stride > 1:
        bound = sample[_TAIL]
        magnitude = vector.abs()
        tail, body = _falling(magnitude[magnitude > float(bound)]) ** 2, sample[sample <= bound] ** 2
        each = (len(vector) - len(tail)) / len(body)
        rest = float(vector.double().square().sum()) if norm_sq is None else norm_sq
        body = body * max(rest - tail.sum(), 0.0) / max(body.sum() * each, 1e-300)
        energy, weight = np.concatenate([tail, body]), np.repeat([1.0, each], [len(tail), len(body)])
    else:
        energy, weight = sample**2, np.ones(len(sample))
    kept, total = np.cumsum(weight), np.cumsum(energy * weight)
    points = np.unique(np.geomspace(1, len(energy), _POINTS).astype(np.int64)) - 1
    kept[-1] = len(vector)
    whole = total[-1] if total[-1] > 0 else 1.0
    return Spectrum(np.append(0.0, kept[points]), np.append(0.0, total[points] / whole))


def _falling(values: Tensor) -> Floats:
    return np.sort(values.cpu().numpy().astype(np.float64))[::-1]
