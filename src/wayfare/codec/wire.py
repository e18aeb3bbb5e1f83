"""Encode kept entries as bytes, and decode them.

A message is a header, the indices, the values, and exact normalisation statistics. Decoding trusts nothing: it checks
sizes, counts, order, ranges and numbers. A message is either one that an encoder wrote for this model, or a
`WireError`. Memory is bounded by the size of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from wayfare.arrays import Buffer
from wayfare.codec.deflate import crc32
from wayfare.codec.errors import WireError
from wayfare.codec.header import CHECKSUM, HEADER, HEADER_BYTES
from wayfare.codec.indices import (
    IndexKind,
    decode_indices,
    encode_indices,
    encode_indices_fast,
    max_symbols,
    symbol_count,
)
from wayfare.codec.steps import ValueBits
from wayfare.codec.values import decode_values, encode_values
from wayfare.sparsify import Sparse

_MAGIC, _VERSION = b"WF", 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What both sides know: the model, and its numbers of parameters and statistics."""

    model_id: bytes  # 8 bytes
    parameters: int
    statistics: int = 0

    @classmethod
    def of(cls, name: str, shapes: Sequence[Sequence[int]], statistics: int = 0) -> Layout:
        """The layout of a network, identified by its name and the shapes of its parameters."""
        text = f"{name}:{[tuple(shape) for shape in shapes]}:{statistics}"
        parameters = sum(int(np.prod(shape)) for shape in shapes)
        return cls(hashlib.blake2b(text.encode(), digest_size=8).digest(), parameters, statistics)


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded upload, and its entries as the receiver decodes them."""

    data: bytes
    delivered: Sparse

    @property
    def bits(self) -> int:
        return 8 * len(self.data)


def encode(kept: Sparse, layout: Layout, value_bits: ValueBits = 32, *, fast: bool = False) -> Message:
    """Encode kept entries, with all statistics or none: as short as possible, or ``fast`` to decode."""
    indices, values = kept.indices.cpu().numpy(), kept.values.detach().cpu().numpy().astype(np.float32)
    chosen = int(np.searchsorted(indices, layout.parameters))
    statistics = values[chosen:]
    if len(statistics) not in (0, layout.statistics):
        raise WireError(f"{len(statistics)} statistics: a message carries all {layout.statistics} or none")
    first, span = span_of(indices[:chosen])
    offsets = indices[:chosen] - first
    kind, index_data = encode_indices_fast(offsets, span) if fast else encode_indices(offsets, span)
    value_data, received = encode_values(values[:chosen], value_bits)
    value_data += encode_values(statistics, 32)[0]
    numbers = (first, span, chosen, symbol_count(offsets))
    data = _front(layout, kind, value_bits, len(statistics), numbers, index_data, value_data) + value_data
    delivered = torch.from_numpy(np.concatenate([received, statistics])).to(kept.values)
    return Message(data, Sparse(kept.indices, delivered))


def encode_exactly(model: NDArray[np.float32], mask: NDArray[np.bool_], layout: Layout) -> tuple[bytes, Buffer]:
    """Encode the entries of a model in a mask, which has all statistics or none: the message is both parts together.

    The second part holds the values. It may be the model's own memory.
    """
    indices = np.flatnonzero(mask)
    chosen = int(np.searchsorted(indices, layout.parameters))
    statistics = len(indices) - chosen
    if statistics not in (0, layout.statistics):
        raise WireError(f"{statistics} statistics: a message carries all {layout.statistics} or none")
    first, span = span_of(indices[:chosen])
    kind, index_data = encode_indices_fast(indices[:chosen], span, mask[first : first + span], first=first)
    coded = kind in (IndexKind.GAPS, IndexKind.HUFFMAN_GAPS)
    symbols = symbol_count(indices[:chosen] - first) if coded else chosen
    taken = model if len(indices) == len(model) else model.take(indices)
    values = taken.astype("<f4", copy=False).view(np.uint8).data
    front = _front(layout, kind, 32, statistics, (first, span, chosen, symbols), index_data, values)
    return front, values


def _front(
    layout: Layout,
    kind: IndexKind,
    value_bits: int,
    statistics: int,
    numbers: tuple[int, int, int, int],
    index_data: bytes,
    value_data: Buffer,
) -> bytes:
    """A message up to its values, with first index, span, kept entries and symbols. The values end with statistics."""
    lengths = (len(index_data), len(value_data) - 4 * statistics)
    header = HEADER.pack(
        *(_MAGIC, _VERSION, kind, value_bits, layout.model_id, layout.parameters, statistics, *numbers, *lengths)
    )
    checksum = crc32(value_data, crc32(index_data, crc32(header)))
    return b"".join([header, CHECKSUM.pack(checksum), index_data])


def decode(data: Buffer, layout: Layout) -> Sparse:
    """The entries of a message for this model."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"a message of {len(data)} bytes is shorter than its header")
    magic, version, kind, value_bits, model_id, parameters, statistics, *numbers = HEADER.unpack_from(data)
    first, span, kept, symbols, index_bytes, value_bytes = numbers
    if magic != _MAGIC or version != _VERSION:
        raise WireError(f"not a message of version {_VERSION}")
    if model_id != layout.model_id or parameters != layout.parameters or statistics not in (0, layout.statistics):
        raise WireError("the message is for another model")
    (checksum,) = CHECKSUM.unpack_from(data, HEADER.size)
    body = memoryview(data)[HEADER_BYTES:]
    if checksum != crc32(body, crc32(data[: HEADER.size])):
        raise WireError("the message is damaged: its checksum differs")
    if first + span > parameters or kept > span or (span > 0) != (kept > 0):
        raise WireError(f"invalid header: {kept} entries in a span of {span} from {first}, of {parameters} parameters")
    if symbols > max_symbols(kept, span) or symbols < kept:
        raise WireError(f"invalid header: {kept} entries in a span of {span} with {symbols} symbols")
    if len(body) != index_bytes + value_bytes + 4 * statistics:
        raise WireError("the lengths in the header do not add up to that of the message")
    indices = decode_indices(kind, body[:index_bytes], kept, symbols, span)
    if kept and (indices[0] != 0 or indices[-1] != span - 1):
        raise WireError("the indices do not match the span in the header")
    values = decode_values(body[index_bytes : index_bytes + value_bytes], value_bits, kept)
    indices += first
    if statistics:
        values = np.concatenate([values, decode_values(body[index_bytes + value_bytes :], 32, statistics)])
        indices = np.concatenate([indices, np.arange(parameters, parameters + statistics)])
    return Sparse(torch.from_numpy(indices), torch.from_numpy(values))


def message_bytes(data: bytes) -> int | None:
    """The length of the message that starts here, by its header; None if the header is incomplete."""
    if len(data) < HEADER_BYTES:
        return None
    *_, statistics, _, _, _, _, index_bytes, value_bytes = HEADER.unpack_from(data)
    return int(HEADER_BYTES + index_bytes + value_bytes + 4 * statistics)


def span_of(indices: NDArray[np.int64]) -> tuple[int, int]:
    """The first index, and the length of the range from it to the last."""
    return (int(indices[0]), int(indices[-1] - indices[0]) + 1) if len(indices) else (0, 0)
