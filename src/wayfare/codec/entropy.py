"""Entropy coding of symbols: asymmetric numeral systems by `constriction`.

Both sides need identical probabilities on any machine. So the table of frequencies is sent as bytes that represent
whole numbers, and no floating-point result that could round differently matters.
"""

from __future__ import annotations

import math
import struct

import constriction
import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Buffer
from wayfare.codec.errors import WireError

_HEAD = struct.Struct("<H")
_WORD_BYTES = 4
_PROBABILITY_BITS = 24
# All but three of the 52 bits of a mantissa in double precision.
_DROPPED_BITS = 49


def encode_symbols(symbols: NDArray[np.unsignedinteger]) -> bytes:
    """Encode a table of frequencies, one byte per symbol of the alphabet, and the symbols."""
    if len(symbols) == 0:
        return b""
    counts = np.bincount(symbols)
    table = _as_bytes(counts)
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _model(table))
    words = coder.get_compressed().astype("<u4")
    return b"".join([_HEAD.pack(len(table) - 1), table.tobytes(), words.tobytes()])


def coded_bytes(counts: NDArray[np.integer]) -> int:
    """An upper bound, in bytes, on `encode_symbols` for symbols with these counts in any order.

    The coder gives a symbol p of 2^24 and takes its state from s to at most s 2^24 / p + 2^24 - p. So s + P, where P is
    the largest p, grows by no more than the factor 2^24 / p, whose logarithm is the symbol's share of the
    cross-entropy. The first symbol finds s = 0. The coder writes a word when s >= 2^40 p. The next symbol then finds
    s >= 2^8 p, so it adds at most log2(1 + 2^-8) bits; and it leaves s >= 2^32, where P adds log2(1 + P / 2^32). The
    last state takes two words, or is all there is.
    """
    weights = _rounded(counts)
    # `sum` and `max` of an array take longer than these.
    shares = weights / (np.add.reduce(weights) + 1.0)
    # The coder sets 1 of 2^24 aside for each symbol, divides the rest and rounds, up or down.
    unit = 2.0**-_PROBABILITY_BITS
    entropy_bits = -float(counts @ np.log2(shares * (1 - unit * (len(counts) + 2))))
    largest = float(np.maximum.reduce(shares)) + 2 * unit
    first_bits = _PROBABILITY_BITS + math.log2(largest)
    word_bits = 8 * _WORD_BYTES - math.log2(1 + 2**-8) - math.log2(1 + largest * 2**-8)
    words = int((entropy_bits + first_bits) / word_bits) + 1
    return _HEAD.size + len(counts) + _WORD_BYTES * words


def trimmed(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts up to the last symbol that occurs, where the encoder's alphabet ends. `np.trim_zeros` is slow."""
    if len(counts) and counts[-1]:
        return counts
    occurring = np.flatnonzero(counts)
    return counts[: int(occurring[-1]) + 1 if len(occurring) else 0]


def decode_symbols(data: Buffer, count: int) -> NDArray[np.int64]:
    """Decode ``count`` symbols. Reject anything that the encoder would not write."""
    if count == 0:
        if data:
            raise WireError("the message has coded symbols, but none are expected")
        return np.zeros(0, np.int64)
    if len(data) < _HEAD.size:
        raise WireError("the coded symbols are truncated")
    symbols = _HEAD.unpack_from(data)[0] + 1
    words = data[_HEAD.size + symbols :]
    if len(data) < _HEAD.size + symbols or len(words) % _WORD_BYTES:
        raise WireError("the coded symbols are truncated")
    table = np.frombuffer(data, np.uint8, symbols, _HEAD.size)
    try:
        coder = constriction.stream.stack.AnsCoder(np.frombuffer(words, "<u4").astype(np.uint32))
        found = coder.decode(_model(table), count)
    except ValueError as error:
        raise WireError(f"cannot decode the symbols: {str(error).splitlines()[0]}") from None
    if not coder.is_empty():
        raise WireError("the coded symbols are longer than their count")
    return np.asarray(found, np.int64)


def _as_bytes(counts: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Counts as bytes with three bits of mantissa: 8 times a count is (8 + m) 2^e, and its byte 8 e + m."""
    # A float has its exponent, which is larger by a constant, above its mantissa.
    return np.asarray(np.minimum((_rounded(counts).view(np.int64) >> _DROPPED_BITS) - (1026 << 3), 255), np.uint8)


def _rounded(counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """8 times the counts, rounded down to four significant bits; a count of 0 becomes 1. The weights of `_as_bytes`."""
    numbers: NDArray[np.float64] = 8.0 * np.maximum(counts, 1)
    bits = numbers.view(np.int64)
    bits &= -1 << _DROPPED_BITS
    return numbers


def _weights(table: NDArray[np.uint8]) -> NDArray[np.float64]:
    numbers = table.astype(np.int64)
    return ((8 + (numbers & 7)) << (numbers >> 3)).astype(np.float64)


def _model(table: NDArray[np.uint8]) -> constriction.stream.model.Categorical:
    weights = _weights(table)
    # The library rejects an alphabet of one symbol.
    return constriction.stream.model.Categorical(np.append(weights, 1.0), perfect=False)
