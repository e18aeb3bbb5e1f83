"""What the values of an update cost at every width, and what quantising them loses: seen on a few of them."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.codec.indices import BASE
from wayfare.codec.values import BLOCK, Float32s, ValueBits, lower_scale, middles_of, steps_of
from wayfare.codec.wire import HEADER_BYTES
from wayfare.control.rate_distortion import Profile, Width, index_bits
from wayfare.sparsify.spectrum import Spectrum, different, log_spaced

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
    looks = different(log_spaced(max(_LEAST_SHARE * seen.entries, 1.0), seen.entries, _LOOKS))
    blocks, sizes, of_look = _typical_blocks(seen, looks)
    energy = np.maximum(_sums(sizes * np.square(blocks).mean(1), of_look), 1e-300)
    values = blocks.astype(np.float32)
    low, span, finest = _quantised(values)
    shares = _shares(finest, sizes, of_look)
    place, at = np.log(seen.kept[1:]), np.log(looks)
    # Beside the entropy of places and values, every entry has its part of the tables and scales.
    beside = _index_table_bits(seen.kept[1:], seen.entries)
    widths = [Width(value_bits=32, bits=32.0 + beside, lost=np.zeros(len(place)))]
    for bits in _WIDTHS:
        # Steps of a smaller width are unions of finer ones, and magnitudes have no sign.
        step = finest >> (_WIDTHS[0] - bits)
        restored = _means(values) if bits == 1 else _floats(middles_of(step, low, span, bits))
        away = np.square(restored - values, dtype=np.float64).mean(1)
        lost = _sums(sizes * away, of_look) / energy
        # Signs are as good as random.
        entropy = 1.0 + _entropies(shares.reshape(len(looks), 1 << (bits - 1), -1).sum(2))
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
    own. Within a stretch magnitudes lie in a block as they lie among all that are kept, at evenly spaced ranks. The
    largest comes first.
    """
    whole, stretches = seen.whole, seen.stretches
    places = whole.places(looks)
    few = int(looks.searchsorted(BLOCK * len(stretches), side="right"))
    together, apart = whole.ranks[places[:few]], whole.in_stretches[:, places[few:]]
    blocks = [
        whole.at(np.multiply.outer(together, _EVENLY)),
        stretches.at(np.multiply.outer(apart, _EVENLY).reshape(len(stretches), -1)).reshape(-1, _RANKS),
    ]
    of_look = np.concatenate([np.arange(few), np.tile(np.arange(few, len(looks)), len(stretches))])
    return np.concatenate(blocks), np.concatenate([together, apart.ravel()]), of_look


def _quantised(values: Float32s) -> tuple[Ints, Ints, Ints]:
    """Where the steps of every block begin, how far they reach, and the finest step of every value."""
    magnitude = values.view(np.int32).astype(np.int64)
    largest, low = magnitude[:, :1], lower_scale(magnitude[:, -1:], magnitude[:, :1])
    span = largest - low + 1
    return low, span, steps_of(magnitude, low, span, _WIDTHS[0])


def _means(values: Float32s) -> Float32s:
    """All that one bit knows of the magnitudes of a block."""
    means: Float32s = values.mean(1, dtype=np.float64, keepdims=True).astype(np.float32)
    return np.minimum(means, values[:, :1])


def _floats(whole: Ints) -> Float32s:
    """The numbers of which these are the bits."""
    return whole.astype(np.int32).view(np.float32)


def _index_table_bits(kept: Floats, entries: int) -> Floats:
    """What the table of gaps adds to an entry; without one a gap takes bytes, one for each digit."""
    gap = entries / kept
    table = (_TABLE_HEAD_BITS + 8 * np.minimum(_TABLE_GAPS * gap, BASE + 1)) / kept
    return np.minimum(table, np.maximum(8 * (1 + gap / BASE) - index_bits(kept, entries) / kept, 0.0))


def _sums(values: Floats, of_look: Ints) -> Floats:
    return np.asarray(np.bincount(of_look, values), np.float64)


def _shares(steps: Ints, sizes: Floats, of_look: Ints) -> Floats:
    """How often each of the finest steps occurs in all the blocks of a look (rows) together."""
    finest = 1 << (_WIDTHS[0] - 1)
    numbered = steps + finest * of_look[:, None]
    counts = np.bincount(numbered.ravel(), np.repeat(sizes, _RANKS), (int(of_look.max()) + 1) * finest)
    entries = np.maximum(_sums(sizes, of_look), 1e-300) * _RANKS
    return np.asarray(counts.reshape(-1, finest) / entries[:, None])


def _entropies(shares: Floats) -> Floats:
    """Bits of a symbol, row by row."""
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(1))
