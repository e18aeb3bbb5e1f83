"""What the values of an update cost at every width, and what quantising them loses: seen on a few of them."""

from __future__ import annotations

import numpy as np
import torch

from wayfare.arrays import Floats, Ints
from wayfare.codec.indices import BASE
from wayfare.codec.values import BLOCK, ValueBits, quantise, restore
from wayfare.codec.wire import HEADER_BYTES
from wayfare.control.rate_distortion import Profile, Width, index_bits
from wayfare.sparsify.spectrum import Spectrum

# Numbers of entries at which values are quantised to see, down to this share; between them the figures move slowly.
_LOOKS, _LEAST_SHARE = 6, 1e-3
# Values that stand for a block, with its extremes as they are to be expected.
_RANKS = 128
_EVENLY = (np.arange(_RANKS) + 0.5) / _RANKS
_EVENLY[[0, -1]] = 0.5 / BLOCK, 1 - 0.5 / BLOCK
# Widths worth a look: 8 bits lose less than a ten-thousandth, so 16 are never better than 32.
_WIDTHS: tuple[ValueBits, ...] = (8, 4, 2, 1)
# Bits of a block's two scales, for each of its entries, and of the head of a table of symbols.
_SCALE_BITS, _TABLE_HEAD_BITS = 64 / BLOCK, 16
# The longest gap that has a place in the table, beside the mean one.
_TABLE_GAPS = 6


def profile(seen: Spectrum, statistics: int = 0) -> Profile:
    """What an update offers: the energy of its largest entries, and what their values cost."""
    looks = np.unique(np.geomspace(max(_LEAST_SHARE * seen.entries, 1.0), seen.entries, _LOOKS))
    blocks, sizes, of_look = _typical_blocks(seen, looks)
    values = torch.from_numpy(blocks.astype(np.float32))
    energy = sizes * np.square(blocks).mean(1)
    place, at = np.log(seen.kept[1:]), np.log(looks)
    # Beside the entropy of places and values, every entry has its part of the tables and scales.
    beside = _index_table_bits(seen.kept[1:], seen.entries)
    widths = [Width(value_bits=32, bits=32.0 + beside, lost=np.zeros(len(place)))]
    scales, finest = quantise(values.view(-1), _WIDTHS[0], _RANKS)
    for bits in _WIDTHS:
        # Steps of a smaller width are unions of finer ones, and magnitudes have no sign; a mean is another scale.
        codes = finest >> (_WIDTHS[0] - bits)
        if bits == 1:
            scales, codes = quantise(values.view(-1), 1, _RANKS)
        away = (restore(scales, codes, bits, _RANKS).view(values.shape) - values).double().square().mean(1).numpy()
        lost = _sums(sizes * away, of_look) / np.maximum(_sums(energy, of_look), 1e-300)
        # Signs are as good as random.
        entropy = 1.0 + _entropies(codes.view(values.shape).numpy(), sizes, of_look, 2**bits)
        cost = np.minimum(entropy + (_TABLE_HEAD_BITS + 8 * 2**bits) / looks, bits)
        widths.append(
            Width(
                value_bits=bits,
                bits=_SCALE_BITS + beside + np.interp(place, at, cost),
                lost=np.interp(place, at, np.minimum(lost, 1.0)),
            )
        )
    overhead_bits = 8.0 * (HEADER_BYTES + 4 * statistics)
    return Profile(kept=seen.kept, captured=seen.captured, widths=tuple(widths), overhead_bits=overhead_bits)


def _typical_blocks(seen: Spectrum, looks: Floats) -> tuple[Floats, Floats, Ints]:
    """Rows of magnitudes that stand for blocks, how many entries each stands for, and of which look it is.

    A block holds neighbours, and layers differ: where there is a block for each stretch of the vector, each has its
    own. Within a stretch magnitudes lie in a block as they lie among all that are kept, at evenly spaced ranks.
    """
    bounds = seen.whole.at(looks)
    many = looks > BLOCK * len(seen.stretches)
    parts = [(seen.whole, ~many), *((stretch, many) for stretch in seen.stretches)]
    blocks, sizes, of_look = [], [], []
    for part, own in parts:
        size = np.where(own, part.above(bounds), 0.0)
        here = np.flatnonzero(size > 0)
        blocks.append(part.at(np.multiply.outer(size[here], _EVENLY)))
        sizes.append(size[here])
        of_look.append(here)
    return np.concatenate(blocks), np.concatenate(sizes), np.concatenate(of_look)


def _index_table_bits(kept: Floats, entries: int) -> Floats:
    """What the table of gaps adds to an entry; without one a gap takes bytes, one for each digit."""
    gap = entries / kept
    table = (_TABLE_HEAD_BITS + 8 * np.minimum(_TABLE_GAPS * gap, BASE + 1)) / kept
    return np.minimum(table, np.maximum(8 * (1 + gap / BASE) - index_bits(kept, entries) / kept, 0.0))


def _sums(values: Floats, of_look: Ints) -> Floats:
    return np.asarray(np.bincount(of_look, values), np.float64)


def _entropies(codes: Ints, sizes: Floats, of_look: Ints, symbols: int) -> Floats:
    """Bits of a symbol in all the blocks of a look together."""
    numbered = codes + symbols * of_look[:, None]
    counts = np.bincount(numbered.ravel(), np.repeat(sizes, codes.shape[1]), (int(of_look.max()) + 1) * symbols)
    shares = counts.reshape(-1, symbols) / np.maximum(_sums(sizes, of_look), 1e-300)[:, None] / codes.shape[1]
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(1))
