"""A model of |x|^2 without training, fitted to real runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from wayfare.arrays import Floats
from wayfare.control.rate_distortion import Profile, Width
from wayfare.errors import RunFolderError
from wayfare.streams import Stream, generator

if TYPE_CHECKING:
    from wayfare.records import RunRecord

# |grad|^2 of a typical local step, fitted to runs of these networks (docs/results/planning.md).
_STEP_NORM_SQ = {"mlp": 8.5, "resnet9": 290.0}
_UNKNOWN_STEP_NORM_SQ = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NormModel:
    """|x|^2 = (1 - captured(k/s)) |x at the last contact|^2 + step theta^growth, times a log-normal factor.

    The local steps of a device point less and less in one direction, so an update grows more slowly than the number of
    steps: growth is well below 1 in real runs.
    """

    step_norm_sq: float
    growth: float = 0.5
    log_spread: float = 0.5
    known: bool = True  # fitted to this kind of network; otherwise a guess

    def factors(self, seed: int, device: int, contacts: int) -> Floats:
        drawn = generator(seed, Stream.MONTE_CARLO, device).standard_normal(contacts)
        return np.asarray(np.exp(self.log_spread * drawn))

    def next_norm_sq(self, memory_norm_sq: ArrayLike, staleness_rounds: ArrayLike, factor: ArrayLike) -> Floats:
        """|x|^2 at a contact, from the |e|^2 after the last one."""
        grown = self.step_norm_sq * np.asarray(staleness_rounds, dtype=np.float64) ** self.growth
        return np.asarray(np.asarray(memory_norm_sq) + grown * np.asarray(factor))


def captured_share(kept_fraction: ArrayLike) -> Floats:
    """The share of |x|^2 in the largest entries for exponential magnitudes: f (1 + l + l^2 / 2), l = -ln f."""
    f = np.clip(np.asarray(kept_fraction, dtype=np.float64), 1e-300, 1.0)
    return np.minimum(f * (1.0 - np.log(f) + 0.5 * np.log(f) ** 2), 1.0)


# Coded bits per value and lost share of energy, by width (benchmarks/wire.py).
_TYPICAL_WIDTHS = {32: (32.0, 0.0), 8: (7.2, 3e-5), 4: (3.2, 6.5e-3), 2: (1.4, 0.106), 1: (1.1, 0.158)}


def typical_profile(parameters: int, statistics_bits: float) -> Profile:
    """The profile of an update with exponential magnitudes."""
    kept = np.append(0.0, np.unique(np.geomspace(1, parameters, 64).astype(np.int64))).astype(np.float64)
    each = np.ones(len(kept) - 1)
    widths = [
        Width(value_bits=value_bits, bits=bits * each, lost=lost * each)
        for value_bits, (bits, lost) in _TYPICAL_WIDTHS.items()
    ]
    captured = np.append(0.0, captured_share(kept[1:] / parameters))
    return Profile(kept=kept, captured=captured, widths=widths, overhead_bits=statistics_bits)


def typical_loss(value_bits: int | None) -> float:
    """The share of the sent entries' energy that quantisation loses."""
    return _TYPICAL_WIDTHS.get(value_bits or 32, (0.0, 0.0))[1]


def typical_norms(network: str) -> NormModel:
    """The model fitted to runs of a network, or a guess for unknown networks."""
    step = _STEP_NORM_SQ.get(network)
    return NormModel(step_norm_sq=step or _UNKNOWN_STEP_NORM_SQ, known=step is not None)


def norms_of_run(record: RunRecord) -> NormModel:
    """Fit the model to a finished run: the growth that explains its norms best, and its median step."""
    contacts = record.contacts
    order = np.lexsort((contacts["round"], contacts["device"]))
    device, norm, stale = (contacts[name][order] for name in ("device", "update_norm_sq", "staleness_rounds"))
    left = norm * (1.0 - captured_share(contacts["entries"][order] / record.parameters))
    again = device[1:] == device[:-1]
    own, memory, stale = norm[1:][again], left[:-1][again], stale[1:][again]
    if len(own) == 0:
        raise RunFolderError(f"{record.folder}: no device has two contacts, so the size of updates cannot be estimated")
    best: tuple[float, NormModel] | None = None
    for growth in np.arange(0.0, 2.01, 0.1):
        step = max(float(np.median((own - memory) / stale**growth)), 1e-12 * float(own.max()))
        spread = float(np.std(np.log(own / (memory + step * stale**growth))))
        if best is None or spread < best[0]:
            best = spread, NormModel(step_norm_sq=step, growth=float(growth), log_spread=spread)
    assert best is not None
    return best[1]
