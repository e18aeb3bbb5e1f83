"""The values of kept entries in 32, 16, 8, 4 or 2 bits, or as a sign and a scale.

Magnitudes of kept entries span a few octaves, most of them near the smallest, so steps are equal in the logarithm, as
near as the bits of a floating-point number give it: read as a whole number, a positive float grows with its value,
linearly within an octave and by the same amount for each. With whole numbers alone sender and receiver agree to the
last bit on any machine, and the sender knows what the receiver will have.

Entries go in blocks, each with the bits of its smallest and largest magnitude.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from wayfare.codec.entropy import decode_symbols, encode_symbols
from wayfare.codec.errors import WireError

ValueBits: TypeAlias = Literal[32, 16, 8, 4, 2, 1]
"""Bits of a value; 1 is a sign, with one scale for its block."""
VALUE_BITS: tuple[ValueBits, ...] = get_args(ValueBits)

BLOCK = 1024
# Magnitudes of a block that are smaller than its largest by more octaves than this count as that small.
_OCTAVES = 24
_INFINITY = 0x7F800000

Float32s: TypeAlias = NDArray[np.float32]


def quantise(values: Float32s, bits: ValueBits) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Scales (blocks, 2) as the bits of floats, and a code for every value: its sign, then its step."""
    whole = values.view(np.uint32)
    magnitude = (whole & 0x7FFFFFFF).astype(np.int64)
    begins = np.arange(0, len(values), BLOCK)
    largest = np.maximum.reduceat(magnitude, begins)
    if bits == 1:
        # One magnitude for all: their mean, which loses least among multiples of the signs.
        sums = np.add.reduceat(np.abs(values.astype(np.float64)), begins)
        means = (sums / np.diff(np.append(begins, len(values)))).astype(np.float32)
        lowest = largest = np.minimum(means.view(np.uint32).astype(np.int64), largest)
    else:
        lowest = np.maximum(np.minimum.reduceat(magnitude, begins), largest - (_OCTAVES << 23))
        lowest = np.maximum(lowest, 0)
    steps = 1 << (bits - 1)
    low, span = _of_entries(lowest, len(values)), _of_entries(largest - lowest + 1, len(values))
    step = np.clip((magnitude - low) * steps // span, 0, steps - 1)
    codes = ((whole >> 31).astype(np.int64) * steps + step).astype(np.uint16)
    return np.stack([lowest, largest], axis=1).astype(np.uint32), codes


def restore(scales: NDArray[np.uint32], codes: NDArray[np.integer], bits: ValueBits) -> Float32s:
    """The values of codes: the middle of each step."""
    lowest, largest = scales.astype(np.int64).T
    if bool(np.any((lowest > largest) | (largest >= _INFINITY))):
        raise WireError("a block whose smallest magnitude is above its largest, or that is not finite")
    steps = 1 << (bits - 1)
    numbers = codes.astype(np.int64)
    low, span = _of_entries(lowest, len(numbers)), _of_entries(largest - lowest + 1, len(numbers))
    magnitude = low + (2 * (numbers & (steps - 1)) + 1) * span // (2 * steps)
    # With fewer floats in a block than steps the middle may fall on the bound.
    magnitude = np.minimum(magnitude, low + span - 1)
    signed = magnitude | ((numbers >= steps).astype(np.int64) << 31)
    return np.asarray(signed.astype(np.uint32).view(np.float32))


def encode_values(values: Float32s, bits: ValueBits) -> tuple[bytes, Float32s]:
    """Bytes, and the values that the receiver will have."""
    if not np.all(np.isfinite(values)):
        raise WireError("values that are not finite cannot be sent")
    if bits == 32:
        return values.astype("<f4").tobytes(), values
    if len(values) == 0:
        return b"", values
    scales, codes = quantise(values, bits)
    plain = _packed(codes, bits)
    coded = encode_symbols(codes) if bits <= 8 else plain
    body = b"\x01" + coded if len(coded) < len(plain) else b"\x00" + plain
    return scales.astype("<u4").tobytes() + body, restore(scales, codes, bits)


def decode_values(data: bytes, bits: int, count: int) -> Float32s:
    """So many finite values."""
    if bits not in VALUE_BITS:
        raise WireError(f"values of {bits} bits, known are {', '.join(map(str, VALUE_BITS))}")
    if bits == 32:
        if len(data) != 4 * count:
            raise WireError("values are cut short, or longer than their count")
        values = np.frombuffer(data, "<f4").astype(np.float32)
    elif count == 0:
        if data:
            raise WireError("values where there are none")
        values = np.zeros(0, np.float32)
    else:
        head = 8 * -(-count // BLOCK)
        if len(data) <= head or data[head] > 1:
            raise WireError("values are cut short, or of an unknown kind")
        scales = np.frombuffer(data[:head], "<u4").astype(np.uint32).reshape(-1, 2)
        coded, body = data[head] == 1, data[head + 1 :]
        codes = decode_symbols(body, count) if coded else _unpacked(body, bits, count)
        if coded and (bits > 8 or int(codes.max()) >= 1 << bits):
            raise WireError(f"a code beyond {bits} bits")
        values = restore(scales, codes, bits)
    if not np.all(np.isfinite(values)):
        raise WireError("values that are not finite")
    return values


def _of_entries(of_blocks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.repeat(of_blocks, BLOCK)[:count]


def _packed(codes: NDArray[np.uint16], bits: int) -> bytes:
    if bits == 16:
        return codes.astype("<u2").tobytes()
    whole = codes.astype(np.uint8)
    return np.packbits(np.unpackbits(whole[:, None], axis=1)[:, 8 - bits :]).tobytes() if bits < 8 else whole.tobytes()


def _unpacked(data: bytes, bits: int, count: int) -> NDArray[np.integer]:
    if len(data) != -(-count * bits // 8):
        raise WireError("values are cut short, or longer than their count")
    if bits == 16:
        return np.frombuffer(data, "<u2")
    if bits == 8:
        return np.frombuffer(data, np.uint8)
    flat = np.unpackbits(np.frombuffer(data, np.uint8))
    if flat[count * bits :].any():
        raise WireError("bits behind the last value")
    places = flat[: count * bits].reshape(count, bits).astype(np.int64)
    return np.asarray(places @ (1 << np.arange(bits - 1, -1, -1)))
