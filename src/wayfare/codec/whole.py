"""Encode whole numbers exactly, in few bits where they are small: sums of class statistics.

A number is folded to 0, -1, 1, -2, ... = 0, 1, 2, 3, ... Folded numbers below 32 are symbols of their own. A larger one
is the symbol of its bit length, followed by its bits below the highest, as they are. Symbols are entropy coded.
"""

from __future__ import annotations

import struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Buffer, Ints
from wayfare.codec.entropy import coded_bytes, decode_symbols, encode_symbols, trimmed
from wayfare.codec.errors import WireError

MAX_WHOLE = 1 << 24
"""Single precision holds every whole number below this exactly, and so every sum that stays below it."""
# Numbers below 2^_DIRECT_BITS have symbols of their own.
_DIRECT_BITS = 5
_DIRECT = 1 << _DIRECT_BITS
_SYMBOLS = _DIRECT + MAX_WHOLE.bit_length() + 1 - _DIRECT_BITS
_HEAD = struct.Struct("<I")


def whole_bytes(values: Tensor) -> int:
    """An upper bound, in bytes, on `encode_whole` for these values in any order."""
    if len(values) == 0:
        return 0
    counts: Ints = torch.bincount(_symbols(_folded(values)), minlength=_SYMBOLS).cpu().numpy()
    raw_bits = int(counts @ _raw_bits(np.arange(_SYMBOLS)))
    return _HEAD.size + coded_bytes(trimmed(counts)) + (raw_bits + 7) // 8


def encode_whole(values: NDArray[np.float32]) -> bytes:
    """The length of the coded symbols, the symbols, and the bits of large numbers."""
    if len(values) == 0:
        return b""
    if np.any(values != np.round(values)) or np.any(np.abs(values) >= MAX_WHOLE):
        raise WireError(f"cannot send statistics that are not whole numbers below {MAX_WHOLE}")
    folded = _folded(torch.from_numpy(values))
    symbols: Ints = _symbols(folded).numpy()
    coded = encode_symbols(symbols.astype(np.uint8))
    return _HEAD.pack(len(coded)) + coded + _packed(folded.numpy(), _raw_bits(symbols))


def decode_whole(data: Buffer, count: int) -> NDArray[np.float32]:
    """Decode ``count`` whole numbers. Reject anything that the encoder would not write."""
    if count == 0:
        if data:
            raise WireError("the message has values, but none are expected")
        return np.zeros(0, np.float32)
    if len(data) < _HEAD.size or len(data) - _HEAD.size < (length := _HEAD.unpack_from(data)[0]):
        raise WireError("the whole numbers are truncated")
    symbols = decode_symbols(data[_HEAD.size : _HEAD.size + length], count)
    if int(symbols.max()) >= _SYMBOLS:
        raise WireError("a whole number is too large")
    raw_bits = _raw_bits(symbols)
    folded = np.where(raw_bits > 0, 1 << raw_bits, symbols) + _unpacked(data[_HEAD.size + length :], raw_bits)
    values = np.where(folded & 1, -(folded + 1) // 2, folded // 2)
    if np.any(np.abs(values) >= MAX_WHOLE):
        raise WireError("a whole number is too large")
    return values.astype(np.float32)


def _folded(values: Tensor) -> Tensor:
    whole = values.to(torch.int64)
    return torch.where(whole < 0, -2 * whole - 1, 2 * whole)


def _symbols(folded: Tensor) -> Tensor:
    # The exponent of a float is one less than the bit length of a number that it holds exactly.
    lengths = (folded.double().view(torch.int64) >> 52) - 1022
    return torch.where(folded < _DIRECT, folded, _DIRECT + lengths - _DIRECT_BITS - 1)


def _raw_bits(symbols: Ints) -> Ints:
    """The number of bits that follow each symbol."""
    return np.where(symbols < _DIRECT, 0, symbols - _DIRECT + _DIRECT_BITS)


def _packed(folded: Ints, raw_bits: Ints) -> bytes:
    """The lowest bits of the large numbers, one number after the other."""
    large = raw_bits > 0
    width = int(raw_bits.max())
    bits = (folded[large, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8)[np.arange(width) < raw_bits[large, None]]).tobytes()


def _unpacked(data: Buffer, raw_bits: Ints) -> Ints:
    total = int(raw_bits.sum())
    if len(data) != (total + 7) // 8:
        raise WireError("the length of the whole numbers differs from their count")
    flat = np.unpackbits(np.frombuffer(data, np.uint8))
    if flat[total:].any():
        raise WireError("there are bits after the last value")
    ends = np.cumsum(raw_bits)
    power = np.arange(total) - np.repeat(ends - raw_bits, raw_bits)
    sums = np.concatenate([[0], np.cumsum(flat[:total].astype(np.int64) << power)])
    return np.asarray(sums[ends] - sums[ends - raw_bits])
