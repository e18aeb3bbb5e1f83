"""Encode the values of kept entries with 32, 16, 8, 4 or 2 bits, or as a sign and a scale.

Magnitudes of kept entries span a few octaves, most of them near the smallest, so quantisation steps are nearly equal in
the logarithm. They use the bits of the floating-point number: read as an integer, a positive float grows linearly
within an octave, and by the same amount in each octave. With integers alone, sender and receiver agree in every bit
on any machine, and the sender knows what the receiver decodes.

Values are grouped in blocks, each with its smallest and largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Buffer
from wayfare.codec.entropy import decode_symbols, encode_symbols
from wayfare.codec.errors import WireError
from wayfare.codec.steps import BLOCK, VALUE_BITS, WHOLE, Float32s, ValueBits, lower_scale, middles_of, steps_of
from wayfare.codec.whole import decode_whole, encode_whole

# Values that a CPU quantises at a time; whole blocks.
_CACHED = 64 * BLOCK
_INFINITY = 0x7F800000


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
