"""Encode the indices of kept entries: a bitmap, gaps, or coded gaps.

Asymmetric numeral systems give the shortest gaps and take 35 ns each to decode. A Huffman code takes 0.2 % more bytes
and 4 ns. So messages between machines use it, while a simulation counts the bits of the shortest encoding.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Bools, Buffer, Ints
from wayfare.codec.deflate import huffman_coded, huffman_decoded
from wayfare.codec.entropy import decode_symbols, encode_symbols
from wayfare.codec.errors import WireError

# A gap is written as gap // BASE symbols of value BASE, then the remainder.
BASE = 255
# A bitmap is at most 14 % longer than coded gaps from this share of kept entries on, so a message 1.3 %. Coding two
# million gaps would take ten times as long.
_BITMAP_FROM = 0.3


class IndexKind(IntEnum):
    ALL = 0  # every entry is kept, so no indices are written
    BITMAP = 1
    GAPS = 2
    CODED_GAPS = 3
    HUFFMAN_GAPS = 4


def encode_indices(indices: Ints, entries: int) -> tuple[IndexKind, bytes]:
    """The shortest encoding of sorted indices."""
    if len(indices) == entries:
        return IndexKind.ALL, b""
    symbols = _symbols(indices)
    ways = [(IndexKind.CODED_GAPS, encode_symbols(symbols)), (IndexKind.GAPS, symbols.tobytes())]
    if (entries + 7) // 8 < min(len(data) for _, data in ways):
        ways.append((IndexKind.BITMAP, _bitmap(indices, entries)))
    return min(ways, key=lambda way: len(way[1]))


def encode_indices_fast(
    indices: Ints, entries: int, mask: Bools | None = None, *, first: int = 0
) -> tuple[IndexKind, bytes]:
    """An encoding of sorted indices, known as a ``mask`` or not, that is fast on both sides and hardly longer.

    Indices are counted from ``first`` on, the mask as well.
    """
    if len(indices) == entries:
        return IndexKind.ALL, b""
    if len(indices) >= _BITMAP_FROM * entries:
        return IndexKind.BITMAP, _bitmap(indices - first, entries) if mask is None else np.packbits(mask).tobytes()
    plain = _symbols(indices - first).tobytes()
    coded = huffman_coded(plain)
    return (IndexKind.HUFFMAN_GAPS, coded) if len(coded) < len(plain) else (IndexKind.GAPS, plain)


def decode_indices(kind: int, data: Buffer, kept: int, symbols: int, entries: int) -> Ints:
    """Decode ``kept`` sorted indices below ``entries``."""
    match kind:
        case IndexKind.ALL:
            if data or kept != entries:
                raise WireError("a message without indices must keep every entry")
            return np.arange(entries)
        case IndexKind.BITMAP:
            return _from_bitmap(data, kept, entries)
        case IndexKind.GAPS:
            if len(data) != symbols:
                raise WireError("the length of the gaps differs from their count")
            return _from_symbols(np.frombuffer(data, np.uint8), kept, entries)
        case IndexKind.CODED_GAPS:
            return _from_symbols(decode_symbols(data, symbols), kept, entries)
        case IndexKind.HUFFMAN_GAPS:
            return _from_symbols(np.frombuffer(huffman_decoded(data, symbols), np.uint8), kept, entries)
        case _:
            raise WireError(f"unknown kind of indices: {kind}")


def symbol_count(indices: Ints) -> int:
    gaps = _gaps(indices)
    # Division is slow, and gaps of large uploads are short.
    return len(gaps) + (int((gaps // BASE).sum()) if gaps.max(initial=0) >= BASE else 0)


def max_symbols(kept: int, entries: int) -> int:
    """The largest number of symbols for the gaps of ``kept`` indices."""
    return kept + (entries - kept) // BASE


def _gaps(indices: Ints) -> Ints:
    """The number of entries that were skipped before each index."""
    gaps = np.empty_like(indices)
    gaps[:1] = indices[:1]
    np.subtract(indices[1:], indices[:-1], out=gaps[1:])
    gaps[1:] -= 1
    return gaps


def _symbols(indices: Ints) -> NDArray[np.uint8]:
    gaps = _gaps(indices)
    if gaps.max(initial=0) < BASE:
        return gaps.astype(np.uint8)
    whole, rest = np.divmod(gaps, BASE)
    ends = np.cumsum(whole + 1)
    symbols = np.full(int(ends[-1]) if len(ends) else 0, BASE, np.uint8)
    symbols[ends - 1] = rest
    return symbols


def _from_symbols(symbols: NDArray[np.integer], kept: int, entries: int) -> Ints:
    if len(symbols) and (symbols.max() > BASE or symbols[-1] == BASE):
        raise WireError("the last gap is incomplete")
    ends = np.flatnonzero(symbols != BASE)
    if len(ends) != kept:
        raise WireError(f"the message has {len(ends)} gaps, its header says {kept}")
    sums = symbols.astype(np.int64)
    indices = np.cumsum(sums, out=sums).take(ends)
    indices += np.arange(kept)
    if kept and indices[-1] >= entries:
        raise WireError(f"index {indices[-1]} is beyond {entries} entries")
    return indices


def _bitmap(indices: Ints, entries: int) -> bytes:
    mask = np.zeros(entries, np.bool_)
    mask[indices] = True
    return np.packbits(mask).tobytes()


def _from_bitmap(data: Buffer, kept: int, entries: int) -> Ints:
    if len(data) != (entries + 7) // 8:
        raise WireError(f"a bitmap of {len(data)} bytes does not match {entries} entries")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if bits[entries:].any() or int(bits.sum()) != kept:
        raise WireError("the bitmap's number of entries differs from the header's")
    return np.flatnonzero(bits)
