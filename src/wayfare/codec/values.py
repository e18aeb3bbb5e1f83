"""Encode the values of kept entries with 32, 16, 8, 4 or 2 bits, or as a sign and a scale.

Magnitudes of kept entries span a few octaves, most of them near the smallest, so quantisation steps are nearly equal in
the logarithm. They use the bits of the floating-point number: read as an integer, a positive float grows linearly
within an octave, and by the same amount in each octave. With integers alone, sender and receiver agree in every bit
on any machine, and the sender knows what the receiver decodes.

Values are grouped in blocks, each with its smallest and largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Buffer
from wayfare.codec.entropy import decode_symbols, encode_symbols
from wayfare.codec.errors import WireError
from wayfare.codec.whole import decode_whole, encode_whole

ValueBits: TypeAlias = Literal[32, 16, 8, 4, 2, 1, 0]
"""Bits per value; 1 is a sign, with one scale for its block; 0 stands for exact whole numbers (`codec.whole`)."""
WHOLE: Literal[0] = 0
VALUE_BITS: tuple[ValueBits, ...] = get_args(ValueBits)[:-1]
"""The widths of real numbers."""

BLOCK = 1024
# Values that a CPU quantises at a time; whole blocks.
_CACHED = 64 * BLOCK
# Smaller magnitudes of a block are raised to this many octaves below its largest.
OCTAVES = 24
_INFINITY = 0x7F800000

Float32s: TypeAlias = NDArray[np.float32]


def value_width(bits: int | None) -> ValueBits:
    """Check that a width is supported."""
    for known in (*VALUE_BITS, WHOLE):
        if bits == known:
            return known
    raise WireError(f"values of {bits} bits are not supported; choose from {', '.join(map(str, VALUE_BITS))}")


def quantise(values: Tensor, bits: ValueBits) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
    """Scales (blocks, 2) as the bits of floats, a code for every value (sign bit, then step), and a decoder.

    It runs where the values are, so that a GPU does not move the update. A CPU takes pieces that fit into its cache,
    which takes a quarter of the time. Decoding is separate, because only the last of several tries is sent.
    """
    if values.device.type == "cpu" and len(values) > _CACHED:
        scales, codes, decoders = zip(*(_quantise(piece, bits) for piece in values.split(_CACHED)), strict=True)
        return torch.cat(scales), torch.cat(codes), lambda: torch.cat([decode() for decode in decoders])
    return _quantise(values, bits)


def _quantise(values: Tensor, bits: ValueBits) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
    """As `quantise`. Every pass over the values and every launch costs time, so decoding starts from the steps."""
    signed = _blocks(values)
    whole = signed.view(torch.int32)
    magnitude = whole & 0x7FFFFFFF
    smallest, largest = torch.aminmax(magnitude, dim=1)
    if bits == 1:
        # One magnitude for all, their mean: the best multiple of the signs.
        lowest = largest = torch.minimum(_means(values).view(torch.int32), largest)
        low, span = lowest[:, None], torch.ones_like(largest)[:, None]
        steps = torch.zeros_like(magnitude, dtype=torch.uint8)
    else:
        lowest = lower_scale(smallest, largest)
        low, span = lowest[:, None], (largest - lowest + 1)[:, None]
        steps = steps_of(magnitude, low, span, bits)

    def decode() -> Tensor:
        restored = middles_of(steps, low, span, bits).view(torch.float32)
        return restored.copysign_(signed).view(-1)[: len(values)]

    codes = steps.add(whole < 0, alpha=1 << (bits - 1))
    return torch.stack([lowest, largest], dim=1), codes.view(-1)[: len(values)], decode


def restore(scales: Tensor, codes: Tensor, bits: ValueBits) -> Tensor:
    """Decode values: the middle of each step."""
    low, largest = scales[:, :1], scales[:, 1:]
    steps, coded = 1 << (bits - 1), _blocks(codes)
    whole = middles_of(coded & (steps - 1), low, largest - low + 1, bits)
    # The sign bit, as an integer.
    whole.add_(coded >= steps, alpha=-(1 << 31))
    return whole.view(torch.float32).view(-1)[: len(codes)]


# The arithmetic of blocks on magnitudes as integers, for tensors (many values) and arrays (few, where double precision
# may hold the integers). Products use double precision, which represents them exactly and divides faster than integers.
Whole = TypeVar("Whole", "NDArray[Any]", Tensor)


def lower_scale(smallest: Whole, largest: Whole) -> Whole:
    """The lower end of the first step of a block."""
    return _at_least(_at_least(smallest, largest - (OCTAVES << 23)), 0)


def steps_of(magnitude: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The step of each magnitude: (magnitude - low) steps / span, rounded down; 0 below ``low``.

    The steps of a block start at ``low`` and divide ``span`` integers. The factor is at most two units in the last
    place too large, so the product reaches every integer that it should. It stays below the next integer, which is
    at least 1 / span >= 2^-28 away: the error is at most 2^15 2^-51.
    """
    step: Whole = _at_least(magnitude - low, 0) * _just_above((1 << (bits - 1)) / _double(span))
    # Bytes are faster to move and count.
    return _down(step, torch.uint8 if bits <= 8 else torch.int32)


def middles_of(step: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The magnitude in the middle of each step: low + (2 step + 1) span / 2^bits, rounded down."""
    part = _double(span) * 2.0**-bits
    middle: Whole = step * (2 * part) + (part + low)
    return _down(middle, torch.int32)


@overload
def _double(whole: Tensor) -> Tensor: ...
@overload
def _double(whole: NDArray[Any]) -> NDArray[Any]: ...
def _double(whole: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    return whole.double() if isinstance(whole, Tensor) else whole.astype(np.float64)


@overload
def _just_above(numbers: Tensor) -> Tensor: ...
@overload
def _just_above(numbers: NDArray[Any]) -> NDArray[Any]: ...
def _just_above(numbers: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    if isinstance(numbers, Tensor):
        return torch.nextafter(numbers, torch.full_like(numbers, torch.inf))
    return np.asarray(np.nextafter(numbers, np.inf))


@overload
def _down(numbers: Tensor, kind: torch.dtype) -> Tensor: ...
@overload
def _down(numbers: NDArray[Any], kind: torch.dtype) -> NDArray[Any]: ...
def _down(numbers: Tensor | NDArray[Any], kind: torch.dtype) -> Tensor | NDArray[Any]:
    """Round down to integers; ``kind`` is the type in a tensor."""
    return numbers.to(kind) if isinstance(numbers, Tensor) else numbers.astype(np.int32)


@overload
def _at_least(numbers: Tensor, bound: Tensor | int) -> Tensor: ...
@overload
def _at_least(numbers: NDArray[Any], bound: NDArray[Any] | int) -> NDArray[Any]: ...
def _at_least(numbers: Tensor | NDArray[Any], bound: Any) -> Tensor | NDArray[Any]:
    # `np.maximum` takes a fraction of the time of `np.clip` for short arrays.
    return numbers.clamp(min=bound) if isinstance(numbers, Tensor) else np.asarray(np.maximum(numbers, bound))


def encode_values(values: Float32s, bits: ValueBits) -> tuple[bytes, Float32s]:
    """The bytes, and the values that the receiver decodes."""
    if not np.all(np.isfinite(values)):
        raise WireError("cannot send NaN or infinity")
    if bits == 32:
        return values.astype("<f4").tobytes(), values
    if bits == WHOLE:
        return encode_whole(values), values
    if len(values) == 0:
        return b"", values
    scales, codes, decode = quantise(torch.from_numpy(values), bits)
    numbers = codes.numpy().astype(np.uint16)
    plain = _packed(numbers, bits)
    coded = encode_symbols(numbers) if bits <= 8 else plain
    body = b"\x01" + coded if len(coded) < len(plain) else b"\x00" + plain
    return scales.numpy().astype("<u4").tobytes() + body, decode().numpy()


def decode_values(data: Buffer, bits: int, count: int) -> Float32s:
    width = value_width(bits)
    if bits == WHOLE:
        return decode_whole(data, count)
    if bits == 32:
        if len(data) != 4 * count:
            raise WireError("the length of the values differs from their count")
        values = np.frombuffer(data, "<f4").astype(np.float32)
    elif count == 0:
        if data:
            raise WireError("the message has values, but none are expected")
        values = np.zeros(0, np.float32)
    else:
        head = 8 * -(-count // BLOCK)
        if len(data) <= head or data[head] > 1:
            raise WireError("the values are truncated, or of an unknown kind")
        scales = np.frombuffer(data[:head], "<u4").astype(np.int64).reshape(-1, 2)
        if bool(np.any((scales[:, 0] > scales[:, 1]) | (scales[:, 1] >= _INFINITY))):
            raise WireError("a block has an invalid range of magnitudes")
        coded, body = data[head] == 1, data[head + 1 :]
        codes = decode_symbols(body, count) if coded else _unpacked(body, bits, count)
        if coded and (bits > 8 or int(codes.max()) >= 1 << bits):
            raise WireError(f"a code exceeds {bits} bits")
        values = restore(torch.from_numpy(scales), torch.from_numpy(codes.astype(np.int64)), width).numpy()
    if not np.all(np.isfinite(values)):
        raise WireError("the message contains NaN or infinity")
    return values


def _blocks(values: Tensor) -> Tensor:
    """Values as rows, one per block; the last row is padded with its last value."""
    missing = -len(values) % BLOCK
    filled = torch.cat([values, values[-1:].expand(missing)]) if missing else values
    return filled.view(-1, BLOCK)


def _means(values: Tensor) -> Tensor:
    missing = -len(values) % BLOCK
    sums = torch.nn.functional.pad(values.abs().double(), (0, missing)).view(-1, BLOCK).sum(1)
    sizes = torch.full_like(sums, BLOCK)
    sizes[-1] -= missing
    return (sums / sizes).float()


def _packed(codes: NDArray[np.uint16], bits: int) -> bytes:
    if bits == 16:
        return codes.astype("<u2").tobytes()
    whole = codes.astype(np.uint8)
    return np.packbits(np.unpackbits(whole[:, None], axis=1)[:, 8 - bits :]).tobytes() if bits < 8 else whole.tobytes()


def _unpacked(data: Buffer, bits: int, count: int) -> NDArray[np.integer]:
    if len(data) != -(-count * bits // 8):
        raise WireError("the length of the values differs from their count")
    if bits == 16:
        return np.frombuffer(data, "<u2")
    if bits == 8:
        return np.frombuffer(data, np.uint8)
    flat = np.unpackbits(np.frombuffer(data, np.uint8))
    if flat[count * bits :].any():
        raise WireError("there are bits after the last value")
    digits = flat[: count * bits].reshape(count, bits).astype(np.int64)
    return np.asarray(digits @ (1 << np.arange(bits - 1, -1, -1)))
