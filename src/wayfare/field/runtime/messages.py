"""Messages between a device and the server, and their validation.

A chunk is a header and a message of `wayfare.codec.wire`. All other messages are small JSON objects with fixed fields.
Anything else raises `WireError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfare.codec.deflate import crc32
from wayfare.codec.errors import WireError
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.pieces import Piece
from wayfare.codec.steps import BLOCK, ValueBits
from wayfare.codec.wire import Layout, decode, encode
from wayfare.learning.models.base import Model, trainable
from wayfare.sparsify import Sparse

# Rises when messages change so that earlier versions of a device cannot read them.
WIRE_FORMAT = 3
_MAGIC, _VERSION = b"WC", 2
# Magic, version, update, chunk, chunks, round, round of the last download, its version, joules spent so far; then a
# checksum of the header and of the entries after it.
_HEADER = struct.Struct("<2sBIIIIIQd")
_CHECKSUM = struct.Struct("<I")
CHUNK_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
MAX_CHUNKS = 4096
# Pieces are joined without a sort if they hold at least every so manieth entry, in blocks that a CPU's cache holds.
_DENSE, _CACHED = 16, 1 << 19
_FEWEST_ENTRIES = 64  # of a chunk, however small it should be
_MAX_NUMBER = 2**32 - 2
_MAX_JSON_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an update. The fields before its entries form its header, in this order."""

    update: int  # counted from 1 by the device
    chunk: int  # counted from 0, the largest entries first
    chunks: int  # of the update
    round: int
    received_round: int  # of the last download; 0: the device trains from the initial model
    base_version: int  # of the device's global model
    spent_joules: float  # so far, as reported by the device
    entries: Sparse
    value_bits: ValueBits = 32  # of the encoding; a decoded chunk holds what the encoder's receiver sees

    def scaled(self, share: float) -> Chunk:
        if share == 1.0:
            return self
        return replace(self, entries=Sparse(self.entries.indices, self.entries.values * share))

    def packed(self, layout: Layout) -> bytes:
        # Coded uploads are as short as decided.
        body = encode(self.entries, layout, self.value_bits, fast=self.value_bits == 32).data
        header = _HEADER.pack(
            *(_MAGIC, _VERSION, self.update, self.chunk, self.chunks, self.round),
            *(self.received_round, self.base_version, self.spent_joules),
        )
        return header + _CHECKSUM.pack(crc32(body, crc32(header))) + body


def unpack(data: bytes, layout: Layout) -> Chunk:
    """Decode a chunk for this model. Anything else raises WireError."""
    if len(data) < CHUNK_HEADER_BYTES + HEADER_BYTES:
        raise WireError(f"a chunk of {len(data)} bytes is shorter than its header")
    magic, version, *numbers = _HEADER.unpack_from(data)
    update, chunk, chunks, round_, received_round, base_version, spent_joules = numbers
    if magic != _MAGIC or version != _VERSION:
        raise WireError(f"not a chunk of version {_VERSION}")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    body = memoryview(data)[CHUNK_HEADER_BYTES:]
    if checksum != crc32(body, crc32(data[: _HEADER.size])):
        raise WireError("the chunk is damaged: its checksum differs")
    if not 1 <= update <= _MAX_NUMBER:
        raise WireError(f"update = {update}: must be 1 to {_MAX_NUMBER}")
    if not 1 <= chunks <= MAX_CHUNKS or chunk >= chunks:
        raise WireError(f"chunk {chunk} of {chunks}: must be one of at most {MAX_CHUNKS}")
    if not 1 <= round_ <= _MAX_NUMBER:
        raise WireError(f"round = {round_}: must be 1 to {_MAX_NUMBER}")
    if not received_round < round_:
        raise WireError(f"received_round = {received_round}: must be below round = {round_}")
    if not math.isfinite(spent_joules) or spent_joules < 0:
        raise WireError(f"spent_joules = {spent_joules}: must be finite and at least 0")
    entries = decode(body, layout)
    if len(entries) == 0:
        raise WireError("the chunk has no entries")
    return Chunk(update, chunk, chunks, round_, received_round, base_version, spent_joules, entries)


def layout_of(name: str, model: Model) -> Layout:
    """The layout of a task's network, identified by its shapes."""
    shapes = [tuple(entry.shape) for entry in trainable(model.module()).values()]
    return Layout.of(name, shapes, model.statistics)


def split(sent: Sparse, layout: Layout, chunk_bytes: int) -> list[Piece]:
    """Split an upload that is not coded into pieces of about ``chunk_bytes``, the largest entries first.

    All statistics go with the first piece.
    """
    if len(sent) == 0:
        return []
    chosen = int(torch.searchsorted(sent.indices, layout.parameters))
    room = max(_entries_in(chunk_bytes, chosen, layout.parameters), math.ceil(chosen / MAX_CHUNKS))
    order = torch.argsort(sent.values[:chosen].abs(), descending=True, stable=True)
    places = [piece.sort().values for piece in order.split(room)]
    places[0] = torch.cat([places[0], torch.arange(chosen, len(sent))])
    return [Piece(Sparse(sent.indices[piece], sent.values[piece]), 32) for piece in places]


def _entries_in(chunk_bytes: int, entries: int, parameters: int) -> int:
    """About how many of some entries fit into a chunk: a value takes 32 bits, and a gap of g log2(g) + 1.5 bits.

    Gaps above 255 take more. Chunks that hold few entries are therefore larger, because smaller ones would hold even
    longer gaps.
    """
    bits = 8 * (chunk_bytes - CHUNK_HEADER_BYTES - HEADER_BYTES)
    room = max(bits / 48, _FEWEST_ENTRIES)
    for _ in range(3):
        room = max(bits / (33.5 + math.log2(parameters / min(room, entries))), _FEWEST_ENTRIES)
    return int(room)


def split_coded(pieces: Sequence[Piece], layout: Layout, chunk_bytes: int) -> list[Piece]:
    """Split coded messages into pieces of about ``chunk_bytes``, which decode to the same values.

    The quantiser works on blocks of neighbouring entries, so a piece holds whole blocks. Neighbouring blocks stay
    together, because distant indices cost bits. In each message the piece with most energy per entry comes first.
    """
    blocks = sum(-(-piece.chosen // BLOCK) for piece in pieces)
    fewest = math.ceil(blocks / max(MAX_CHUNKS - len(pieces), 1))
    found: list[Piece] = []
    for piece in pieces:
        indices, values = piece.kept.indices[: piece.chosen], piece.kept.values[: piece.chosen]
        span = int(indices[-1] - indices[0]) + 1
        entry_bits = piece.value_bits + math.log2(span / len(indices)) + 1.5
        room = 8 * (chunk_bytes - CHUNK_HEADER_BYTES - HEADER_BYTES) / (entry_bits * BLOCK)
        length = BLOCK * max(int(room), fewest, 1)
        parts = [
            Piece(Sparse(*part), piece.value_bits)
            for part in zip(indices.split(length), values.split(length), strict=True)
        ]
        parts.sort(key=lambda part: -float(part.kept.values.double().square().mean()))
        if piece.statistics:
            tail = slice(piece.chosen, None)
            first = Sparse(
                torch.cat([parts[0].kept.indices, piece.kept.indices[tail]]),
                torch.cat([parts[0].kept.values, piece.kept.values[tail]]),
            )
            parts[0] = Piece(first, piece.value_bits, piece.statistics)
        found += parts
    return found


def joined(pieces: Sequence[Sparse]) -> Sparse:
    """Join the pieces of one update, whose values are finite, sorted by index."""
    if len(pieces) == 1:
        return pieces[0]
    indices = [piece.indices.numpy() for piece in pieces if len(piece)]
    values = [piece.values.numpy() for piece in pieces if len(piece)]
    total = sum(map(len, indices))
    first = min((int(piece[0]) for piece in indices), default=0)
    end = max((int(piece[-1]) + 1 for piece in indices), default=0)
    if total * _DENSE < end - first:
        # NumPy's stable sort merges the sorted runs; a sort from scratch takes several times as long.
        order = np.argsort(found := np.concatenate(indices), kind="stable")
        return Sparse(torch.from_numpy(found[order]), torch.from_numpy(np.concatenate(values)[order]))
    # Of many entries it is faster to write each one to its place, where NaN means that none was sent.
    found, sent = np.empty(total, np.int64), np.empty(total, np.float32)
    width = max(min(end - first, _CACHED), 1)
    placed = np.empty(width, np.float32)
    edges = np.arange(first, end + width, width)
    cuts = np.array([np.searchsorted(piece, edges) for piece in indices]).T.tolist()
    done = 0
    for begin, starts, ends in zip(edges.tolist(), cuts, cuts[1:], strict=False):
        here = np.concatenate([piece[low:high] for piece, low, high in zip(indices, starts, ends, strict=True)])
        here -= begin
        placed.fill(np.nan)
        placed[here] = np.concatenate([piece[low:high] for piece, low, high in zip(values, starts, ends, strict=True)])
        here = np.flatnonzero(placed == placed)
        place = slice(done, done := done + len(here))
        np.add(here, begin, out=found[place])
        placed.take(here, out=sent[place], mode="clip")
    return Sparse(torch.from_numpy(found), torch.from_numpy(sent))


Number = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
Version = Annotated[int, Field(ge=0, le=2**53)]
# Digests of what a fleet has agreed on, by the names of its settings.
Agreement: TypeAlias = dict[Annotated[str, Field(max_length=16)], Annotated[str, Field(max_length=16)]]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def packed(self) -> bytes:
        # Without defaults, so that machines of the previous version understand messages that use nothing new.
        return self.model_dump_json(exclude_defaults=True).encode()


class Settings(_Message):
    """Settings of devices that the operator changes while the fleet runs; None: as a device was started."""

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    batch_size: Annotated[int, Field(ge=1, le=_MAX_NUMBER)] | None = None
    max_local_steps: Annotated[int, Field(ge=1, le=_MAX_NUMBER)] | None = None
    exchange_every_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    uploads_per_day: Annotated[int, Field(ge=1, le=_MAX_NUMBER)] | None = None  # the server enforces it


class Ask(_Message):
    """From a device: which chunks of my open update are recorded? With ``seal``, record no more of it."""

    update: Number | None = None
    seal: bool = False
    fresh: bool = False  # a device with a new store: its energy account restarts
    version: Version | None = None  # of its model
    samples: Number | None = None  # in its folder
    running: Version | None = None  # the version that it uses for inference
    loss: Annotated[float, Field(allow_inf_nan=False)] | None = None  # of its latest local model on its own data
    work: Agreement = Field(default={}, max_length=8)  # what must be as on the server, by name


class Standing(_Message):
    """From the server: the recorded chunks of the update, and the number for a new one."""

    next_update: Number
    recorded: list[Number] = Field(default=[], max_length=MAX_CHUNKS)
    sealed: bool = False
    version: Version
    wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # the next upload is accepted after this time
    outdated: bool = False  # the device's model is too old: start from the current one, without what was learned
    refused: Annotated[str, Field(max_length=500)] | None = None  # why the server takes nothing from this device


class Mark(_Message):
    """From the server: chunks that are recorded, or the reason why one was rejected."""

    update: Number
    recorded: list[Number] = Field(default=[], max_length=MAX_CHUNKS)
    refused: Annotated[str, Field(max_length=500)] | None = None


class Begun(_Message):
    """From a device: the download that it has begun and wants to continue, and how much of it is missing."""

    version: Version
    base_version: Version | None = None
    digest: Annotated[str, Field(max_length=64)]
    handed_digest: Annotated[str, Field(max_length=64)] = ""
    left_bytes: Annotated[int, Field(ge=0, le=2**40)]


class Finish(_Message):
    """From a device: this round's update is delivered; it downloads the model or not."""

    round: Number
    update: Number | None = None
    have_version: Version | None = None
    take: bool = True
    cut_short: bool = False  # the planned contact ended before the round's model existed: use the one before
    begun: Begun | None = None
    # Of a private device, so far: releases, and the epsilon that follows from them.
    releases: Number | None = None
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Released(_Message):
    """From the server: the version that this device uses for inference. It is always downloaded whole."""

    version: Version
    size_bytes: Annotated[int, Field(ge=0, le=2**40)]
    digest: Annotated[str, Field(max_length=64)]


class Manifest(_Message):
    """From the server: the model on offer, and how to download it."""

    state: Literal["ready", "wait", "refused"]
    version: Version = 0
    base_version: Version | None = None  # of a delta; None: a whole model
    size_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0
    digest: Annotated[str, Field(max_length=64)] = ""
    # The state that the server rule hands to this device; its bytes follow those of the model.
    handed_bytes: Annotated[int, Field(ge=0, le=2**40)] = 0
    handed_digest: Annotated[str, Field(max_length=64)] = ""
    released: Released | None = None  # None: the device uses the model that it received last
    settings: Settings | None = None  # that hold with this version; None: nothing was ever changed
    reason: Annotated[str, Field(max_length=500)] = ""


class Part(_Message):
    """From a device: a request for some bytes of a model and its handed state."""

    version: Version
    base_version: Version | None = None
    offset: Annotated[int, Field(ge=0, le=2**40)]
    size_bytes: Annotated[int, Field(ge=1, le=1 << 20)]
    released: bool = False  # of the released version


_Any = TypeVar("_Any", bound=_Message)


def parse(kind: type[_Any], data: bytes) -> _Any:
    """Parse a message of a kind. Anything else raises WireError."""
    if len(data) > _MAX_JSON_BYTES:
        raise WireError(f"a message of {len(data)} bytes, the limit is {_MAX_JSON_BYTES}")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise WireError(f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a valid {kind.__name__}: {error}") from None
