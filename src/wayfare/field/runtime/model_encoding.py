"""The bytes of a download: the entries of a model, with compressed exponents, and the state handed down with it."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import torch
import zstandard
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Buffer
from wayfare.codec.deflate import huffman_decoded
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout, decode, encode_exactly
from wayfare.field.runtime.database import tree_of
from wayfare.field.runtime.outbox import digest
from wayfare.methods import NO_STATE, State
from wayfare.methods.states import same_kind, vectors_of

# The length of everything before the values, their number, and the length of their compressed bytes.
_HEAD = struct.Struct("<III")
_FAST = "blake3:"
# Of matches of 7 bytes a table of 64 entries finds hardly any: Huffman codes remain, in blocks of 128 KB.
_HUFFMAN_ONLY = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6, window_log=17, target_length=0, write_content_size=1
)
# Values whose bytes a CPU's cache holds while they are separated.
_CACHED = 1 << 16


def packed(model: Tensor, newer: NDArray[np.bool_] | None, layout: Layout) -> bytes:
    """All entries of a model, or the newer ones; all statistics or none."""
    if newer is None:
        newer = np.ones(len(model), np.bool_)
    newer[layout.parameters :] = newer[layout.parameters :].any()
    return squeezed(*encode_exactly(model.numpy(), newer, layout))


def squeezed(front: bytes, values: Buffer) -> bytes:
    """Compress the highest byte of every value without loss: sign and exponent, 2 to 3 bits of information.

    The other bytes of a value are noise. Huffman codes alone are fastest, and longer matches do not occur.
    """
    whole = np.frombuffer(values, "<u4")
    lowest, third, highest = (np.empty(len(whole), kind) for kind in ("<u2", np.uint8, np.uint8))
    for begin in range(0, len(whole), _CACHED):
        block = slice(begin, begin + _CACHED)
        # Assignments keep the lowest bytes.
        lowest[block] = whole[block]
        upper = whole[block] >> np.uint32(16)
        third[block] = upper
        highest[block] = upper >> np.uint32(8)
    coded = zstandard.ZstdCompressor(compression_params=_HUFFMAN_ONLY).compress(highest.data)
    head = _HEAD.pack(len(front), len(whole), len(coded))
    return b"".join([head, front, coded, lowest.data, third.data])


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
    highest = _decoded(memoryview(data)[begin : begin + coded_bytes], count)
    values = np.empty((count, 4), np.uint8)
    values.view("<u2")[:, 0] = np.frombuffer(data, "<u2", count, begin + coded_bytes)
    values[:, 2] = np.frombuffer(data, np.uint8, count, begin + coded_bytes + 2 * count)
    values[:, 3] = np.frombuffer(highest, np.uint8)
    return data[_HEAD.size : begin] + values.tobytes()


def _decoded(coded: memoryview, count: int) -> bytes:
    """``count`` bytes from Zstandard, or from Deflate in files of earlier versions, which never begin like this."""
    if coded[:4] != zstandard.FRAME_HEADER:
        return huffman_decoded(coded, count)
    try:
        # The decoder believes the length in the frame.
        if (length := zstandard.frame_content_size(coded)) != count:
            raise WireError(f"coded bytes: {length}, expected {count}")
        return zstandard.ZstdDecompressor().decompress(coded, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"cannot decode the bytes: {error}") from None


def unpacked(data: bytes, layout: Layout, *, base: Tensor | None, digest: str) -> Tensor:
    """Decode a download on top of the device's model. Raises WireError unless it equals the server's in every bit."""
    size = layout.parameters + layout.statistics
    entries = decode(expanded(data, size), layout)
    if base is None and len(entries) != size:
        raise WireError(f"a whole model has {len(entries)} entries, expected {size}")
    model = entries.values if base is None else base.index_copy(0, entries.indices, entries.values)
    if digest != (fast_digest(model) if digest.startswith(_FAST) else model_digest(model)):
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
    """SHA-256, for files and releases, which any program may check."""
    return hashlib.sha256(_bytes_of(model)).hexdigest()


def fast_digest(model: Tensor) -> str:
    """BLAKE3, for downloads: the server computes one for every version, and SHA-256 takes three times as long."""
    return _FAST + blake3(_bytes_of(model)).hexdigest(length=24)


def _bytes_of(model: Tensor) -> memoryview:
    return np.ascontiguousarray(model.detach().cpu().numpy(), "<f4").data.cast("B")
