"""What travels between a device and the server, and the checks it passes before anyone believes it.

A chunk is a header of ours and a message of `wayfare.codec.wire`. Everything else is small: JSON with a fixed set of
fields. Whatever arrives is one of these or a `WireError`.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfare.codec.errors import WireError
from wayfare.codec.wire import HEADER_BYTES, Layout, decode, encode
from wayfare.learning.models.base import Model, trainable
from wayfare.sparsify import Sparse

_MAGIC, _VERSION = b"WC", 2
# Magic, version, update, chunk, chunks, round, round of the last model, the version of that model, joules spent so far;
# then a checksum of that and of the entries behind it.
_HEADER = struct.Struct("<2sBIIIIIQd")
_CHECKSUM = struct.Struct("<I")
CHUNK_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
MOST_CHUNKS = 4096
_MOST_NUMBER = 2**32 - 2
_MOST_JSON_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an update; all but its entries are its header, in this order."""

    update: int  # counted from 1 by the device
    chunk: int  # counted from 0, the largest entries first
    chunks: int  # of the update
    round: int
    received_round: int  # in which the device got its global model; 0: it trains from the first one
    base_version: int  # of the global model the device has
    spent_joules: float  # of the device so far, by its own account
    entries: Sparse

    def scaled(self, share: float) -> Chunk:
        scaled = Sparse(self.entries.indices, self.entries.values * share)
        return self if share == 1.0 else replace(self, entries=scaled)

    def packed(self, layout: Layout) -> bytes:
        body = encode(self.entries, layout).data
        header = _HEADER.pack(
            *(_MAGIC, _VERSION, self.update, self.chunk, self.chunks, self.round),
            *(self.received_round, self.base_version, self.spent_joules),
        )
        return header + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(header))) + body


def unpack(data: bytes, layout: Layout) -> Chunk:
    """A chunk for this model; WireError for anything else."""
    if len(data) < CHUNK_HEADER_BYTES + HEADER_BYTES:
        raise WireError(f"a chunk of {len(data)} bytes, shorter than its header")
    magic, version, *numbers = _HEADER.unpack_from(data)
    update, chunk, chunks, round_, received_round, base_version, spent_joules = numbers
    if magic != _MAGIC or version != _VERSION:
        raise WireError(f"no chunk of version {_VERSION}")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    body = data[CHUNK_HEADER_BYTES:]
    if checksum != zlib.crc32(body, zlib.crc32(data[: _HEADER.size])):
        raise WireError("a chunk that was damaged on its way: its checksum differs")
    if not 1 <= update <= _MOST_NUMBER:
        raise WireError(f"update = {update}: must be 1 to {_MOST_NUMBER}")
    if not 1 <= chunks <= MOST_CHUNKS or chunk >= chunks:
        raise WireError(f"chunk {chunk} of {chunks}: must be one of at most {MOST_CHUNKS}")
    if not 1 <= round_ <= _MOST_NUMBER:
        raise WireError(f"round = {round_}: must be 1 to {_MOST_NUMBER}")
    if not received_round < round_:
        raise WireError(f"received_round = {received_round}: must be below round = {round_}")
    if not math.isfinite(spent_joules) or spent_joules < 0:
        raise WireError(f"spent_joules = {spent_joules}: must be finite and at least 0")
    entries = decode(body, layout)
    if len(entries) == 0:
        raise WireError("a chunk without entries")
    return Chunk(update, chunk, chunks, round_, received_round, base_version, spent_joules, entries)


def layout_of(name: str, model: Model) -> Layout:
    """What both sides know of a task's network: its shapes stand for it."""
    shapes = [tuple(entry.shape) for entry in trainable(model.module()).values()]
    return Layout.of(name, shapes, model.statistics)


def split(sent: Sparse, layout: Layout, chunk_bytes: int) -> list[Sparse]:
    """An upload as pieces of about so many bytes, those with the largest entries first.

    Statistics, which go whole or not at all, go with the first piece.
    """
    if len(sent) == 0:
        return []
    chosen = int(torch.searchsorted(sent.indices, layout.parameters))
    # A value and, at most, an index of 4 bytes; gaps take less, so pieces come out somewhat smaller than asked for.
    room = max((chunk_bytes - CHUNK_HEADER_BYTES - HEADER_BYTES) // 6, 64)
    room = max(room, math.ceil(chosen / MOST_CHUNKS))
    order = torch.argsort(sent.values[:chosen].abs(), descending=True, stable=True)
    places = [piece.sort().values for piece in order.split(room)]
    places[0] = torch.cat([places[0], torch.arange(chosen, len(sent))])
    return [Sparse(sent.indices[piece], sent.values[piece]) for piece in places]


def joined(pieces: Sequence[Sparse]) -> Sparse:
    """Pieces of one update as one again, sorted by index."""
    indices = torch.cat([piece.indices for piece in pieces])
    order = indices.argsort(stable=True)
    return Sparse(indices[order], torch.cat([piece.values for piece in pieces])[order])


Number = Annotated[int, Field(ge=0, le=_MOST_NUMBER)]
Version = Annotated[int, Field(ge=0, le=2**53)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def packed(self) -> bytes:
        return self.model_dump_json().encode()


class Ask(_Message):
    """A device: what of my open update is recorded? Sealed, no more of it will be."""

    update: Number | None = None
    seal: bool = False
    fresh: bool = False  # a device without a past: its account of its energy begins again


class Standing(_Message):
    """The server: which chunks of the update asked for are recorded, and what a new update may be called."""

    next_update: Number
    recorded: list[Number] = Field(default=[], max_length=MOST_CHUNKS)
    sealed: bool = False
    version: Version


class Mark(_Message):
    """The server: these chunks are recorded, or one was refused and why."""

    update: Number
    recorded: list[Number] = Field(default=[], max_length=MOST_CHUNKS)
    refused: Annotated[str, Field(max_length=500)] | None = None


class Finish(_Message):
    """A device: everything of this round's update is delivered; it takes the model, or goes without."""

    round: Number
    update: Number | None = None
    have_version: Version | None = None
    take: bool = True
    cut_short: bool = False  # the contact of a plan ended before the round's model was there: it takes the one before


class Manifest(_Message):
    """The server: the model that is to be had, and how."""

    state: Literal["ready", "wait", "refused"]
    version: Version = 0
    base_version: Version | None = None  # what a delta builds on; None: a whole model
    size_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0
    digest: Annotated[str, Field(max_length=64)] = ""
    # What the server rule hands to this device alone; its bytes follow those of the model.
    handed_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0
    handed_digest: Annotated[str, Field(max_length=64)] = ""
    reason: Annotated[str, Field(max_length=500)] = ""


class Part(_Message):
    """A device: some bytes of a model and of what is handed down with it."""

    version: Version
    base_version: Version | None = None
    offset: Annotated[int, Field(ge=0, le=2**40)]
    size_bytes: Annotated[int, Field(ge=1, le=1 << 20)]


_Any = TypeVar("_Any", bound=_Message)


def parse(kind: type[_Any], data: bytes) -> _Any:
    """A message of a kind; WireError for anything else."""
    if len(data) > _MOST_JSON_BYTES:
        raise WireError(f"a message of {len(data)} bytes, at most {_MOST_JSON_BYTES} are read")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise WireError(f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise WireError(f"no {kind.__name__}: {error}") from None
