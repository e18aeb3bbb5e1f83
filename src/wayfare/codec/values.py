"""The values of kept entries in 32, 16, 8, 4 or 2 bits, or as a sign and a scale.

Magnitudes of kept entries span a few octaves, most of them near the smallest, so steps are equal in the logarithm, as
near as the bits of a floating-point number give it: read as a whole number, a positive float grows with its value,
linearly within an octave and by the same amount for each. With whole numbers alone sender and receiver agree to the
last bit on any machine, and the sender knows what the receiver will have.

Entries go in blocks, each with the bits of its smallest and largest magnitude.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
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

    Works where the values lie, so that a device with a GPU knows what it will have sent without moving an update.
    """
    whole = values.view(torch.int32)
    magnitude = (whole & 0x7FFFFFFF).long()
    largest = _blocks(magnitude, 0).amax(1)
    if bits == 1:
        # One magnitude for all: their mean, which loses least among multiples of the signs.
        sums = _blocks(values.abs().double(), 0).sum(1)
        sizes = _blocks(torch.ones_like(magnitude), 0).sum(1)
        means = (sums / sizes).float().view(torch.int32).long()
        lowest = largest = torch.minimum(means, largest)
    else:
        lowest = lower_scale(_blocks(magnitude, _INFINITY).amin(1), largest)
    low, span = _of_entries(lowest, len(values)), _of_entries(largest - lowest + 1, len(values))
    sign = (whole < 0).long() << (bits - 1)
    return torch.stack([lowest, largest], dim=1), sign + steps_of(magnitude, low, span, bits)


def restore(scales: Tensor, codes: Tensor, bits: ValueBits) -> Tensor:
    """The values of codes: the middle of each step."""
    lowest, largest = scales.unbind(1)
    steps = 1 << (bits - 1)
    low, span = _of_entries(lowest, len(codes)), _of_entries(largest - lowest + 1, len(codes))
    magnitude = middles_of(codes & (steps - 1), low, span, bits).int().view(torch.float32)
    return torch.where(codes >= steps, -magnitude, magnitude)


# The arithmetic of blocks, on magnitudes as whole numbers: of many values in tensors, of a few in arrays.
Whole = TypeVar("Whole", Ints, Tensor)


def lower_scale(smallest: Whole, largest: Whole) -> Whole:
    """Where the steps of a block begin."""
    return smallest.clip(min=largest - (_OCTAVES << 23)).clip(min=0)


def steps_of(magnitude: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The step that each magnitude lies in; a block's begin at ``low`` and divide ``span`` whole numbers."""
    steps = 1 << (bits - 1)
    return ((magnitude - low) * steps // span).clip(0, steps - 1)


def middles_of(step: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The magnitude in the middle of each step."""
    middle = low + ((2 * step + 1) * span >> bits)
    # With fewer floats in a block than steps the middle may fall on the bound.
    return middle.clip(max=low + span - 1)


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
    """So many finite values."""
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


def _blocks(values: Tensor, filling: int) -> Tensor:
    """Values as rows of a block each, the last one filled up."""
    missing = -len(values) % BLOCK
    return torch.nn.functional.pad(values, (0, missing), value=filling).view(-1, BLOCK)


def _of_entries(of_blocks: Tensor, count: int) -> Tensor:
    return of_blocks.repeat_interleave(BLOCK)[:count]


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
