"""The bytes of a download: the entries of a model, with compressed exponents, and the state handed down with it."""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout, decode, encode_exactly, value_count
from wayfare.field.runtime.database import tree_of
from wayfare.field.runtime.outbox import digest
from wayfare.methods import NO_STATE, State
from wayfare.methods.states import same_kind, vectors_of

# The length of everything before the values, their number, and the length of their compressed bytes.
_HEAD = struct.Struct("<III")


def packed(model: Tensor, newer: NDArray[np.bool_] | None, layout: Layout) -> bytes:
    """All entries of a model, or the newer ones; all statistics or none."""
    if newer is None:
        newer = np.ones(len(model), np.bool_)
    newer[layout.parameters :] = newer[layout.parameters :].any()
    return squeezed(encode_exactly(model.numpy(), newer, layout))


def squeezed(message: bytes) -> bytes:
    """Compress the highest byte of every value without loss: sign and exponent, 2 to 3 bits of information.

    The other bytes of a value are noise. Huffman codes alone are fastest, and longer matches do not occur.
    """
    count = value_count(message)
    at = len(message) - 4 * count
    highest = np.frombuffer(message, np.uint8, offset=at).reshape(-1, 4)
    halves = np.frombuffer(message, "<u2", offset=at).reshape(-1, 2)
    coder = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(highest[:, 3].tobytes()) + coder.flush()
    head = _HEAD.pack(at, count, len(coded))
    return b"".join([head, message[:at], coded, halves[:, 0].tobytes(), highest[:, 2].tobytes()])


def expanded(data: bytes, most: int) -> bytes:
    """Reverse `squeezed`, for at most ``most`` values; anything else raises WireError."""
    if len(data) < _HEAD.size:
        raise WireError(f"a download of {len(data)} bytes is shorter than its header")
    at, count, coded_bytes = _HEAD.unpack_from(data)
    if count > most:
        raise WireError(f"the server's model has {count} values, this device's {most}; both need the same task")
    if len(data) != _HEAD.size + at + coded_bytes + 3 * count:
        raise WireError(f"a download of {len(data)} bytes does not hold {count} values")
    begin = _HEAD.size + at
    coder = zlib.decompressobj(-15)
    try:
        highest = coder.decompress(data[begin : begin + coded_bytes], count + 1)
    except zlib.error as error:
        raise WireError(f"a download is damaged: {error}") from None
    if len(highest) != count or not coder.eof:
        raise WireError(f"a download has {len(highest)} exponents, expected {count}")
    values = np.empty((count, 4), np.uint8)
    values.view("<u2")[:, 0] = np.frombuffer(data, "<u2", count, begin + coded_bytes)
    values[:, 2] = np.frombuffer(data, np.uint8, count, begin + coded_bytes + 2 * count)
    values[:, 3] = np.frombuffer(highest, np.uint8)
    return data[_HEAD.size : begin] + values.tobytes()


def unpacked(data: bytes, layout: Layout, *, base: Tensor | None, digest: str) -> Tensor:
    """Decode a download on top of the device's model. Raises WireError unless it equals the server's in every bit."""
    size = layout.parameters + layout.statistics
    entries = decode(expanded(data, size), layout)
    if base is None and len(entries) != size:
        raise WireError(f"a whole model has {len(entries)} entries, expected {size}")
    model = entries.values if base is None else base.index_copy(0, entries.indices, entries.values)
    if model_digest(model) != digest:
        raise WireError("the downloaded model is not the server's: its digest differs")
    return model


def unpacked_state(data: bytes, expected_digest: str, like: State) -> State:
    """A handed state; WireError unless it is the server's and fits the state ``like`` of the local rule."""
    if not data:
        return NO_STATE
    if digest(data) != expected_digest:
        raise WireError("handed state: its digest differs from the server's")
    try:
        state = tree_of(data)
    except Exception as error:  # torch.load raises many types
        raise WireError(f"handed state: cannot be read: {error}") from None
    if not same_kind({**like, **state}, like):
        raise WireError(f"handed state: has {sorted(state)}, which does not fit the local rule")
    for name, vector in vectors_of(state):
        if not bool(torch.isfinite(vector).all()):
            raise WireError(f"handed state: {name} holds NaN or infinity")
    return state


def model_digest(model: Tensor) -> str:
    """SHA-256: CPUs have instructions for it, which makes it twice as fast as BLAKE2."""
    return hashlib.sha256(np.ascontiguousarray(model.detach().cpu().numpy(), "<f4").data).hexdigest()
