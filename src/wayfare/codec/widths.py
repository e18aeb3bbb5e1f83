"""What the values of an update cost at every width, and what quantising them loses: seen on a few of them."""

from __future__ import annotations

import numpy as np
import torch

from wayfare.arrays import Floats, Ints
from wayfare.codec.values import BLOCK, VALUE_BITS, quantise, restore
from wayfare.codec.wire import HEADER_BYTES
from wayfare.control.rate_distortion import Profile, Width
from wayfare.sparsify.spectrum import Spectrum

# Numbers of entries at which values are quantised to see; between them the figures move slowly.
_LOOKS = 12
# Bits of a block's two scales, for each of its entries.
_SCALE_BITS = 64 / BLOCK
# Entropy coding pays up to this width, and sends a table with a byte for each symbol.
_CODED_BITS, _TABLE_HEAD_BITS = 8, 16


def profile(seen: Spectrum, statistics: int = 0) -> Profile:
    """What an update offers: the energy of its largest entries, and what their values cost.

    A block of entries holds magnitudes as they lie among all that are kept, so one block with evenly spaced ranks
    stands for all; signs are as good as random.
    """
    looks = np.unique(np.geomspace(1, seen.entries, _LOOKS))
    blocks = seen.among(looks, BLOCK).astype(np.float32)
    energy = np.maximum(np.square(blocks, dtype=np.float64).sum(1), 1e-300)
    place, at = np.log(seen.kept[1:]), np.log(looks)
    widths = [Width(value_bits=32, bits=np.full(len(place), 32.0), lost=np.zeros(len(place)))]
    for bits in VALUE_BITS:
        if bits == 32:
            continue
        scales, codes = quantise(torch.from_numpy(blocks.ravel()), bits)
        away = restore(scales, codes, bits).numpy().reshape(blocks.shape) - blocks
        lost = np.minimum(np.square(away, dtype=np.float64).sum(1) / energy, 1.0)
        cost = np.full(len(looks), float(bits))
        if bits <= _CODED_BITS:
            table = (_TABLE_HEAD_BITS + 8 * 2**bits) / looks
            cost = np.minimum(cost, 1.0 + _entropies(codes.numpy().reshape(blocks.shape), 2**bits) + table)
        widths.append(
            Width(value_bits=bits, bits=_SCALE_BITS + np.interp(place, at, cost), lost=np.interp(place, at, lost))
        )
    overhead_bits = 8.0 * (HEADER_BYTES + 4 * statistics)
    return Profile(kept=seen.kept, captured=seen.captured, widths=tuple(widths), overhead_bits=overhead_bits)


def _entropies(codes: Ints, symbols: int) -> Floats:
    """Bits of a symbol, row by row."""
    rows, count = codes.shape
    numbered = codes + symbols * np.arange(rows)[:, None]
    shares = np.bincount(numbered.ravel(), minlength=rows * symbols).reshape(rows, symbols) / count
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(1))
