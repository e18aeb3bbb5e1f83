"""The values of kept entries in 32, 16, 8, 4 or 2 bits, or as a sign and a scale.

Magnitudes of kept entries span a few octaves, most of them near the smallest, so steps are equal in the logarithm, as
near as the bits of a floating-point number give it: read as a whole number, a positive float grows with its value,
linearly within an octave and by the same amount for each. With whole numbers alone sender and receiver agree to the
last bit on any machine, and the sender knows what the receiver will have.

Entries go in blocks, each with the bits of its smallest and largest magnitude.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def value_width(bits: int | None) -> ValueBits:
    """A width that is known; anything else is refused."""
    for known in VALUE_BITS:
        if bits == known:
            return known
    raise WireError(f"values of {bits} bits, known are {', '.join(map(str, VALUE_BITS))}")


def quantise(values: Tensor, bits: ValueBits) -> tuple[Tensor, Tensor]:
    """Scales (blocks, 2) as the bits of floats, and a code for every value: its sign, then its step.

    Works where the values lie, so that a device with a GPU knows what it will have sent without moving an update. There
    every pass over all values counts, and how many bytes it moves.
    """
    whole = _blocks(values.view(torch.int32))
    magnitude = whole & 0x7FFFFFFF
    smallest, largest = torch.aminmax(magnitude, dim=1)
    if bits == 1:
        # One magnitude for all: their mean, which loses least among multiples of the signs.
        lowest = largest = torch.minimum(_means(values).view(torch.int32), largest)
        codes = torch.zeros_like(magnitude, dtype=torch.uint8)
    else:
        lowest = lower_scale(smallest, largest)
        low, span = lowest[:, None], (largest - lowest + 1)[:, None]
        codes = steps_of(magnitude, low, span, bits)
    codes.add_(whole < 0, alpha=1 << (bits - 1))
    return torch.stack([lowest, largest], dim=1), codes.view(-1)[: len(values)]


def restore(scales: Tensor, codes: Tensor, bits: ValueBits) -> Tensor:
    """The values of codes: the middle of each step."""
    low, largest = scales[:, :1], scales[:, 1:]
    steps, coded = 1 << (bits - 1), _blocks(codes)
    whole = middles_of(coded & (steps - 1), low, largest - low + 1, bits)
    # The bit of the sign, as a whole number.
    whole.add_(coded >= steps, alpha=-(1 << 31))
    return whole.view(torch.float32).view(-1)[: len(codes)]


# The arithmetic of blocks, on magnitudes as whole numbers: of many values in tensors, of a few in arrays. Products go
# through double precision, which holds them to the last digit and divides faster than whole numbers do.
Whole = TypeVar("Whole", "NDArray[Any]", Tensor)


def lower_scale(smallest: Whole, largest: Whole) -> Whole:
    """Where the steps of a block begin."""
    return smallest.clip(min=largest - (_OCTAVES << 23)).clip(min=0)


def steps_of(magnitude: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The step that each magnitude lies in: (magnitude - low) steps / span, rounded down; the first for all below it.

    The steps of a block begin at ``low`` and divide ``span`` whole numbers. The factor is at most two units in the last
    place too large, so that the product reaches every whole number that it should; and it stays below the next one,
    from which it is away by 1 / span or more: a 2^28th, beside a 2^51st of at most 2^15.
    """
    step: Whole = (magnitude - low).clip(min=0) * _just_above((1 << (bits - 1)) / _double(span))
    # Bytes are moved and counted faster than what could hold more.
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
    """Whole numbers, in a tensor those of a kind."""
    return numbers.to(kind) if isinstance(numbers, Tensor) else numbers.astype(np.int64)


def encode_values(values: Float32s, bits: ValueBits) -> tuple[bytes, Float32s]:
    """Bytes, and the values that the receiver will have."""
    if not np.all(np.isfinite(values)):
        raise WireError("values that are not finite cannot be sent")
    if bits == 32:
        return values.astype("<f4").tobytes(), values
    if len(values) == 0:
        return b"", values
    scales, codes = quantise(torch.from_numpy(values), bits)
    numbers = codes.numpy().astype(np.uint16)
    plain = _packed(numbers, bits)
    coded = encode_symbols(numbers) if bits <= 8 else plain
    body = b"\x01" + coded if len(coded) < len(plain) else b"\x00" + plain
    return scales.numpy().astype("<u4").tobytes() + body, restore(scales, codes, bits).numpy()


def decode_values(data: bytes, bits: int, count: int) -> Float32s:
    width = value_width(bits)
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
        scales = np.frombuffer(data[:head], "<u4").astype(np.int64).reshape(-1, 2)
        if bool(np.any((scales[:, 0] > scales[:, 1]) | (scales[:, 1] >= _INFINITY))):
            raise WireError("a block whose smallest magnitude is above its largest, or that is not finite")
        coded, body = data[head] == 1, data[head + 1 :]
        codes = decode_symbols(body, count) if coded else _unpacked(body, bits, count)
        if coded and (bits > 8 or int(codes.max()) >= 1 << bits):
            raise WireError(f"a code beyond {bits} bits")
        values = restore(torch.from_numpy(scales), torch.from_numpy(codes.astype(np.int64)), width).numpy()
    if not np.all(np.isfinite(values)):
        raise WireError("values that are not finite")
    return values


def _blocks(values: Tensor) -> Tensor:
    """Values as rows of a block each, the last one filled up with its last value."""
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
