"""The cost of an update's values at every width, and the quantisation loss, estimated from a few values."""

from __future__ import annotations

from functools import cache

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.indices import BASE
from wayfare.codec.steps import BLOCK, Float32s, ValueBits, lower_scale, middles_of, steps_of
from wayfare.control.rate_distortion import Profile, Width, index_bits
from wayfare.control.spectrum import Spectrum, distinct, log_spaced

# Numbers of entries at which values are test-quantised, down to this share. Cost and loss vary slowly in between.
_LOOKS, _LEAST_SHARE = 6, 1e-3
# Representative values of a block, including its expected extremes.
_RANKS = 128
_EVENLY = (np.arange(_RANKS) + 0.5) / _RANKS
_EVENLY[[0, -1]] = 0.5 / BLOCK, 1 - 0.5 / BLOCK
# Candidate widths. 8 bits lose less than a ten-thousandth, so 16 bits never pay.
_WIDTHS: tuple[ValueBits, ...] = (8, 4, 2, 1)
# Bits of a block's two scales per entry, and of the header of a table of symbols.
_SCALE_BITS, _TABLE_HEAD_BITS = 64 / BLOCK, 16
# The longest gap in the table, as a multiple of the mean gap.
_TABLE_GAPS = 6


def profile(seen: Spectrum, statistics: int = 0) -> Profile:
    """The profile of an update: the energy of its largest entries, and the cost of their values."""
    looks = _looks(seen.entries)
    blocks, sizes, of_look = _typical_blocks(seen, looks)
    energy = np.maximum(_sums(sizes * _means_of_rows(np.square(blocks, dtype=np.float64)), of_look), 1e-300)
    values = blocks.astype(np.float32, copy=False)
    low, span, finest = _quantised(values)
    shares = _shares(finest, sizes, of_look)
    log_kept, at = np.log(seen.kept[1:]), np.log(looks)
    # Besides the entropy of indices and values, every entry pays its part of the tables and scales.
    overhead = _index_table_bits(seen.kept[1:], seen.entries)
    widths = [Width(value_bits=32, bits=32.0 + overhead, lost=np.zeros(len(log_kept)))]
    for bits in _WIDTHS:
        # Steps of a smaller width are unions of finer steps.
        step = finest >> (_WIDTHS[0] - bits)
        restored = _means(values) if bits == 1 else middles_of(step, low, span, bits).view(np.float32)
        away = _means_of_rows(np.square(restored - values, dtype=np.float64))
        lost = _sums(sizes * away, of_look) / energy
        # A sign costs one bit.
        entropy = 1.0 + _entropies(shares.reshape(len(looks), 1 << (bits - 1), -1).sum(2))
        cost = np.minimum(entropy + (_TABLE_HEAD_BITS + 8 * 2**bits) / looks, bits)
        widths.append(
            Width(
                value_bits=bits,
                bits=_SCALE_BITS + overhead + np.interp(log_kept, at, cost),
                lost=np.interp(log_kept, at, np.minimum(lost, 1.0)),
            )
        )
    overhead_bits = 8.0 * (HEADER_BYTES + 4 * statistics)
    return Profile(kept=seen.kept, captured=seen.captured, widths=tuple(widths), overhead_bits=overhead_bits)


@cache
def _looks(entries: int) -> Floats:
    looks = distinct(log_spaced(max(_LEAST_SHARE * entries, 1.0), entries, _LOOKS))
    looks.flags.writeable = False
    return looks


def _typical_blocks(seen: Spectrum, looks: Floats) -> tuple[Floats, Floats, Ints]:
    """Rows of magnitudes that represent blocks, the number of entries per row, and the test point of each row.

    A block holds neighbouring entries, and layers differ: if there are enough entries, every segment of the vector has
    its own block. Within a segment, a block has the magnitudes at evenly spaced ranks of the kept entries. The
    largest comes first.
    """
    whole, segments = seen.whole, seen.segments
    indices = whole.indices(looks)
    few = int(looks.searchsorted(BLOCK * len(segments), side="right"))
    together, apart = whole.ranks[indices[:few]], whole.in_segments[:, indices[few:]]
    blocks = [
        whole.at(np.multiply.outer(together, _EVENLY)),
        segments.at(np.multiply.outer(apart, _EVENLY).reshape(len(segments), -1)).reshape(-1, _RANKS),
    ]
    of_look = _look_of_rows(few, len(looks), len(segments))
    return np.concatenate(blocks), np.concatenate([together, apart.ravel()]), of_look


@cache
def _look_of_rows(few: int, looks: int, segments: int) -> Ints:
    """The test point of each row: one row for each of the first few, then one of every segment for each of the rest."""
    of_look = np.concatenate([np.arange(few), np.tile(np.arange(few, looks), segments)])
    of_look.flags.writeable = False
    return of_look


def _quantised(values: Float32s) -> tuple[Floats, Floats, Ints]:
    """Lower end and span of the steps of every block, and the finest step of every value."""
    # Doubles hold these integers and save conversions.
    magnitude = values.view(np.int32).astype(np.float64)
    largest, low = magnitude[:, :1], lower_scale(magnitude[:, -1:], magnitude[:, :1])
    span = largest - low + 1
    return low, span, steps_of(magnitude, low, span, _WIDTHS[0])


def _means(values: Float32s) -> Float32s:
    """The one magnitude of a block at a width of 1 bit."""
    means: Float32s = values.mean(1, dtype=np.float64, keepdims=True).astype(np.float32)
    return np.minimum(means, values[:, :1])


def _index_table_bits(kept: Floats, entries: int) -> Floats:
    """Bits per entry for the table of gaps; without a table a gap takes one byte per symbol."""
    gap = entries / kept
    table = (_TABLE_HEAD_BITS + 8 * np.minimum(_TABLE_GAPS * gap, BASE + 1)) / kept
    return np.minimum(table, np.maximum(8 * (1 + gap / BASE) - index_bits(kept, entries) / kept, 0.0))


def _means_of_rows(values: Floats) -> Floats:
    """`values.mean(1)` with less overhead."""
    return np.asarray(np.add.reduce(values, 1) / _RANKS)


def _sums(values: Floats, of_look: Ints) -> Floats:
    return np.asarray(np.bincount(of_look, values), np.float64)


def _shares(steps: Ints, sizes: Floats, of_look: Ints) -> Floats:
    """The frequency of each finest step over the blocks of a test point (rows)."""
    finest = 1 << (_WIDTHS[0] - 1)
    numbered = steps + finest * of_look[:, None]
    counts = np.bincount(numbered.ravel(), np.repeat(sizes, _RANKS), (int(of_look.max()) + 1) * finest)
    entries = np.maximum(_sums(sizes, of_look), 1e-300) * _RANKS
    return np.asarray(counts.reshape(-1, finest) / entries[:, None])


def _entropies(shares: Floats) -> Floats:
    """The entropy of each row, in bits per symbol."""
    return np.asarray(-(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(1))
