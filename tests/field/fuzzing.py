"""Uploads that no device of ours would send: damaged, forged with right checksums, out of turn, or just noise."""

from __future__ import annotations

import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.field.parts import LAYOUT, noise
from wayfare.codec.header import HEADER_BYTES
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.messages import CHUNK_HEADER_BYTES, Chunk
from wayfare.sparsify import top_k

HEADER = struct.Struct("<2sBIIIIIQd")  # as in messages.py
WIRE = struct.Struct("<2sBBB8sIIIIII")  # as in codec/wire.py


def valid(rng: np.random.Generator, *, update: int = 2) -> bytes:
    """A chunk that would be recorded if its update were open."""
    piece = top_k(noise(int(rng.integers(1 << 30)))[: LAYOUT.parameters], int(rng.integers(1, 100)))
    return Chunk(
        update=update, chunk=0, chunks=3, round=1, received_round=0, base_version=0, spent_joules=1.0, entries=piece
    ).packed(LAYOUT)  # fmt: skip


def sealed(header: bytes, body: bytes) -> bytes:
    """With a checksum that is right."""
    return header + struct.pack("<I", zlib.crc32(body, zlib.crc32(header))) + body


def noise_bytes(rng: np.random.Generator) -> bytes:
    return rng.bytes(int(rng.integers(0, 3000)))


def flipped(rng: np.random.Generator) -> bytes:
    data = bytearray(valid(rng))
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
    return bytes(data)


def cut_short(rng: np.random.Generator) -> bytes:
    data = valid(rng)
    return data[: int(rng.integers(len(data)))]


def lengthened(rng: np.random.Generator) -> bytes:
    return valid(rng) + rng.bytes(int(rng.integers(1, 2000)))


def forged_header(rng: np.random.Generator) -> bytes:
    """One field of our header that cannot be, under a right checksum."""
    data = valid(rng)
    fields = list(HEADER.unpack_from(data))
    choices: list[tuple[int, list[Any]]] = [
        (0, [b"XX", b"WF"]),
        (1, [0, 1, 3, 255]),
        (2, [0, 1, 2**32 - 1]),  # none, one that is closed, beyond the last
        (3, [3, 2**32 - 1]),
        (4, [0, 4097, 2**32 - 1]),
        (5, [0, 2**32 - 1]),
        (6, [1, 2**32 - 1]),  # its own round, or one to come
        (7, [99, 2**63, 2**64 - 1]),
        (8, [math.nan, math.inf, -math.inf, -1.0, 0.5, 1e300]),
    ]
    place, values = choices[int(rng.integers(len(choices)))]
    fields[place] = values[int(rng.integers(len(values)))]
    return sealed(HEADER.pack(*fields), data[CHUNK_HEADER_BYTES:])


def forged_entries(rng: np.random.Generator) -> bytes:
    """Entries that cannot be, under right checksums, theirs and ours."""
    data = valid(rng)
    ours, inner = data[: HEADER.size], data[CHUNK_HEADER_BYTES:]
    fields, body = list(WIRE.unpack_from(inner)), bytearray(inner[HEADER_BYTES:])
    kind = int(rng.integers(6))
    values_at = fields[9]
    if kind == 0:  # another model, sizes, counts, unknown kinds
        place = int(rng.choice([1, 2, 3, 5, 6, 7, 8, 9, 10]))
        fields[place] = int(rng.integers(200, 256)) if place <= 3 else int(rng.integers(2**31, 2**32))
    elif kind == 1:  # numbers that are none, infinite, or far too large
        bad = [math.nan, math.inf, -math.inf, 3e38, -1e5][int(rng.integers(5))]
        body[values_at : values_at + 4] = struct.pack("<f", bad)
    elif kind == 2:
        fields[4] = rng.bytes(8)
    elif kind == 3:  # no entries at all
        fields[7:11], body = [0, 0, 0, 0], bytearray()
    elif kind == 4:
        body = body[: int(rng.integers(len(body)))]
    else:
        body += rng.bytes(int(rng.integers(1, 50)))
    return sealed(ours, sealed(WIRE.pack(*fields), bytes(body)))


def out_of_turn(rng: np.random.Generator) -> bytes:
    """Whole and sound, of an update that is closed already."""
    return valid(rng, update=1)


KINDS: tuple[Callable[[np.random.Generator], bytes], ...] = (
    *(noise_bytes, flipped, cut_short, lengthened),
    *(forged_header, forged_entries, out_of_turn),
)


def fuzz(intake: Intake, uploads: int, rng: np.random.Generator) -> Counter[str]:
    """Throw uploads at a server in batches of any size; how many of each kind were refused."""
    refused: Counter[str] = Counter()
    done = 0
    while done < uploads:
        kinds = [KINDS[int(rng.integers(len(KINDS)))] for _ in range(int(rng.integers(1, 33)))]
        marks = intake.chunks([(int(rng.integers(len(intake.names))), kind(rng)) for kind in kinds])
        assert len(marks) == len(kinds)
        assert all(mark.refused for _, mark in marks)
        refused.update(kind.__name__ for kind in kinds)
        done += len(kinds)
    return refused
