"""Bytes right at the limit of what an encoder writes, and one beyond it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from wayfare.codec.deflate import huffman_coded
from wayfare.codec.entropy import decode_symbols, encode_symbols
from wayfare.codec.errors import WireError
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.indices import (
    BASE,
    IndexKind,
    decode_indices,
    encode_indices,
    encode_indices_fast,
    max_symbols,
    symbol_count,
)
from wayfare.codec.steps import BLOCK
from wayfare.codec.values import decode_values, encode_values, value_width
from wayfare.codec.wire import Layout, decode, encode, message_bytes, span_of
from wayfare.sparsify import Sparse

HEADER = struct.Struct("<2sBBB8sIIIIIIII")
NAMES = (
    *("magic", "version", "kind", "value_bits", "model_id", "parameters", "statistics", "first", "span", "kept"),
    *("symbols", "index_bytes", "value_bytes"),
)
LAYOUT = Layout.of("limits", [(1000,)], statistics=2)
# Gaps of 0, 3 and 290 places, the last in two digits.
PLACES = torch.tensor([5, 9, 300])


def message(**changes: object) -> bytes:
    """Three entries in 296 places from 5 on, as they are or with another header, and a checksum that fits."""
    data = encode(Sparse(PLACES, torch.tensor([1.0, -2.0, 3.0])), LAYOUT).data
    fields = dict(zip(NAMES, HEADER.unpack_from(data), strict=True)) | changes
    return signed(HEADER.pack(*fields.values()), data[HEADER_BYTES:])


def signed(header: bytes, body: bytes) -> bytes:
    return header + struct.pack("<I", zlib.crc32(body, zlib.crc32(header))) + body


def test_the_message_that_is_changed_here() -> None:
    data = message()
    header = dict(zip(NAMES, HEADER.unpack_from(data), strict=True))
    assert {name: header[name] for name in NAMES[7:]} == {
        **{"first": 5, "span": 296, "kept": 3, "symbols": 4, "index_bytes": 4, "value_bytes": 12},
    }
    assert (header["kind"], data[HEADER_BYTES : HEADER_BYTES + 4]) == (IndexKind.GAPS, bytes([0, 3, 255, 35]))
    assert decode(data, LAYOUT).indices.tolist() == [5, 9, 300]
    assert decode(message(first=704), LAYOUT).indices.tolist() == [704, 708, 999]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"magic": b"WG"}, "not a message of version 1"),
        ({"version": 2}, "not a message of version 1"),
        ({"version": 0}, "not a message of version 1"),
        ({"model_id": b"01234567"}, "another model"),
        ({"parameters": 999}, "another model"),
        ({"parameters": 1001}, "another model"),
        ({"statistics": 1}, "another model"),
        ({"statistics": 3}, "another model"),
        ({"first": 705}, "3 entries in a span of 296 from 705, of 1000"),
        ({"span": 2}, "3 entries in a span of 2 "),
        ({"kept": 0}, "0 entries in a span of 296 "),
        ({"kept": 0, "span": 0}, "with 4 symbols"),
        ({"symbols": 5}, "3 entries in a span of 296 with 5 symbols"),
        ({"symbols": 2}, "with 2 symbols"),
        ({"span": 257}, "3 entries in a span of 257 with 4 symbols"),
        ({"symbols": 3}, "length of the gaps differs"),
        ({"index_bytes": 3}, "do not add up"),
        ({"value_bytes": 13}, "do not add up"),
        ({"statistics": 2}, "do not add up"),
        ({"span": 297}, "do not match the span"),
        ({"span": 295}, "index 295 is beyond 295 entries"),
        ({"kind": 5}, "unknown kind of indices: 5"),
        ({"value_bits": 3}, "values of 3 bits are not supported; choose from 32, 16, 8, 4, 2, 1"),
        ({"index_bytes": 3, "symbols": 3, "value_bytes": 13}, "the last gap is incomplete"),
    ],
)
def test_a_header_that_no_encoder_writes_is_refused(changes: dict[str, object], refused: str) -> None:
    with pytest.raises(WireError, match=refused):
        decode(message(**changes), LAYOUT)


def test_entries_begin_where_the_message_says() -> None:
    data = message()
    later = signed(data[: HEADER.size], bytes([1, 2]) + data[HEADER_BYTES + 2 :])
    with pytest.raises(WireError, match="do not match the span"):
        decode(later, LAYOUT)


def test_statistics_go_all_together_or_not_at_all() -> None:
    assert Layout.of("plain", [(2, 3), (4,)]) == Layout(Layout.of("plain", [(2, 3), (4,)]).model_id, 10)
    assert Layout(b"12345678", 10).statistics == 0
    every = Sparse(torch.tensor([3, 1000, 1001]), torch.tensor([1.0, 2.0, 3.0]))
    assert decode(encode(every, LAYOUT).data, LAYOUT).indices.tolist() == [3, 1000, 1001]
    with pytest.raises(WireError, match="1 statistics: a message carries all 2 or none"):
        encode(Sparse(every.indices[:2], every.values[:2]), LAYOUT)


def test_a_message_says_how_long_it_is() -> None:
    data = message()
    assert message_bytes(data) == message_bytes(data[:HEADER_BYTES]) == len(data) == HEADER_BYTES + 16
    assert message_bytes(data[: HEADER_BYTES - 1]) is None
    every = encode(Sparse(torch.tensor([3, 1000, 1001]), torch.ones(3)), LAYOUT).data
    assert message_bytes(every) == len(every)
    assert span_of(np.array([7])) == (7, 1)
    assert span_of(np.array([7, 9, 20])) == (7, 14)
    assert span_of(np.zeros(0, np.int64)) == (0, 0)


@dataclass(frozen=True)
class Indices:
    kind: int
    data: bytes
    kept: int
    symbols: int
    entries: int = 20


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (Indices(IndexKind.ALL, b"x", 20, 0), "must keep every entry"),
        (Indices(IndexKind.ALL, b"", 19, 0), "must keep every entry"),
        (Indices(IndexKind.ALL, b"", 21, 0), "must keep every entry"),
        (Indices(IndexKind.BITMAP, bytes(2), 0, 0), "a bitmap of 2 bytes does not match 20 entries"),
        (Indices(IndexKind.BITMAP, bytes(4), 0, 0), "a bitmap of 4 bytes does not match 20 entries"),
        (Indices(IndexKind.BITMAP, bytes([0, 0, 0b1000]), 1, 0), "bitmap's number of entries differs"),
        (Indices(IndexKind.BITMAP, bytes([1, 0, 0]), 2, 0), "bitmap's number of entries differs"),
        (Indices(IndexKind.GAPS, bytes([1, 2]), 2, 3), "length of the gaps differs"),
        (Indices(IndexKind.GAPS, bytes([1, 2]), 2, 1), "length of the gaps differs"),
        (Indices(IndexKind.GAPS, bytes([1, 255]), 1, 2), "the last gap is incomplete"),
        (Indices(IndexKind.GAPS, bytes([1, 2]), 1, 2), "2 gaps, its header says 1"),
        (Indices(IndexKind.GAPS, bytes([10, 9]), 2, 2), "index 20 is beyond 20 entries"),
        (
            Indices(IndexKind.CODED_GAPS, encode_symbols(np.array([256, 1], np.uint16)), 2, 2, 999),
            "the last gap is incomplete",
        ),
        (Indices(IndexKind.HUFFMAN_GAPS, b"", 0, 0), "coded bytes: 0 or more, expected 0"),
        (Indices(IndexKind.HUFFMAN_GAPS, b"\xff", 2, 2), "cannot decode the bytes"),
        (Indices(IndexKind.HUFFMAN_GAPS, huffman_coded(bytes(3)), 2, 2), "coded bytes: 3 or more, expected 2"),
        (Indices(IndexKind.HUFFMAN_GAPS, huffman_coded(bytes(2)) + b"x", 2, 2), "coded bytes: 2 or more, expected 2"),
        (Indices(IndexKind.HUFFMAN_GAPS, huffman_coded(bytes(2))[:-1], 2, 2), "coded bytes: 2 or more, expected 2"),
        (Indices(IndexKind.HUFFMAN_GAPS, huffman_coded(bytes([10, 9])), 2, 2), "index 20 is beyond 20 entries"),
    ],
)
def test_indices_that_no_encoder_writes_are_refused(given: Indices, refused: str) -> None:
    with pytest.raises(WireError, match=refused):
        decode_indices(given.kind, given.data, given.kept, given.symbols, given.entries)


def test_indices_at_their_limits() -> None:
    assert decode_indices(IndexKind.ALL, b"", 4, 0, 4).tolist() == [0, 1, 2, 3]
    assert decode_indices(IndexKind.BITMAP, bytes([0x80, 0, 0b10000]), 2, 0, 20).tolist() == [0, 19]
    assert decode_indices(IndexKind.BITMAP, bytes([0x80, 1]), 2, 0, 16).tolist() == [0, 15]
    assert decode_indices(IndexKind.GAPS, bytes([10, 8]), 2, 2, 20).tolist() == [10, 19]
    assert decode_indices(IndexKind.GAPS, b"", 0, 0, 20).tolist() == []
    # A gap of BASE takes a full digit and an empty one.
    assert decode_indices(IndexKind.GAPS, bytes([BASE, 0, BASE - 1]), 2, 3, 999).tolist() == [255, 510]
    for indices, digits in (([254], 1), ([255], 2), ([0, 255], 2), ([0, 256], 3), ([509], 2), ([510], 3), ([], 0)):
        assert symbol_count(np.array(indices, np.int64)) == digits
    assert [max_symbols(3, entries) for entries in (257, 258, 512, 513)] == [3, 4, 4, 5]


@pytest.mark.parametrize("kept", [0, 1, 2, 30, 3000, 9000, 12_000, 20_000, 40_000])
def test_fast_indices_come_back_and_are_hardly_longer(kept: int) -> None:
    entries = 40_000
    indices = np.sort(np.random.default_rng(kept).choice(entries, kept, replace=False))
    kind, data = encode_indices_fast(indices, entries)
    assert decode_indices(kind, data, kept, symbol_count(indices), entries).tolist() == indices.tolist()
    # A bitmap may be 14 % longer; otherwise a Huffman code loses less than 1 % to the shortest, and a table of codes.
    assert len(data) <= 1.14 * len(encode_indices(indices, entries)[1]) + 8
    mask = np.zeros(entries, np.bool_)
    mask[indices] = True
    assert encode_indices_fast(indices, entries, mask) == (kind, data)


def test_a_bitmap_is_taken_only_where_it_is_shorter() -> None:
    # Nine places in two bytes: two gaps are as short, three are longer.
    assert encode_indices(np.array([0, 8]), 9)[0] == IndexKind.GAPS
    assert encode_indices(np.array([0, 3, 8]), 9) == (IndexKind.BITMAP, bytes([0b10010000, 0b10000000]))
    assert encode_indices(np.array([0, 3, 7]), 8) == (IndexKind.BITMAP, bytes([0b10010001]))
    assert encode_indices(np.arange(9), 9) == (IndexKind.ALL, b"")


def test_symbols_that_no_encoder_writes_are_refused() -> None:
    symbols = np.random.default_rng(0).integers(0, 5, 100).astype(np.uint8)
    data = encode_symbols(symbols)
    assert data[:2] == bytes([4, 0])
    assert np.array_equal(decode_symbols(data, 100), symbols)
    for cut in (0, 1, 2, 6, len(data) - 1, len(data) - 3):
        with pytest.raises(WireError, match="symbols are truncated"):
            decode_symbols(data[:cut], 100)
    for count in (50, 99):
        with pytest.raises(WireError, match="longer than their count"):
            decode_symbols(data, count)
    with pytest.raises(WireError, match="none are expected"):
        decode_symbols(data, 0)
    assert encode_symbols(symbols[:0]) == b""
    assert decode_symbols(b"", 0).tolist() == []


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_values_that_no_encoder_writes_are_refused(bits: int) -> None:
    values = np.linspace(1.0, 2.0, 3, dtype=np.float32)
    data, received = encode_values(values, value_width(bits))
    body = -(-3 * bits // 8)
    assert len(data) == 8 + 1 + body
    assert np.array_equal(decode_values(data, bits, 3), received)
    for cut in (0, 8):
        with pytest.raises(WireError, match="truncated, or of an unknown kind"):
            decode_values(data[:cut], bits, 3)
    with pytest.raises(WireError, match="unknown kind"):
        decode_values(data[:8] + b"\x02" + data[9:], bits, 3)
    for wrong in (data[:-1], data + b"\x00"):
        with pytest.raises(WireError, match="length of the values differs"):
            decode_values(wrong, bits, 3)
    if bits < 8:
        with pytest.raises(WireError, match="bits after the last value"):
            decode_values(data[:-1] + bytes([data[-1] | 1]), bits, 3)
    with pytest.raises(WireError, match="none are expected"):
        decode_values(data, bits, 0)
    assert decode_values(b"", bits, 0).tolist() == []
    # One magnitude for the whole block is no mistake.
    same, _ = encode_values(np.full(3, 1.5, np.float32), value_width(bits))
    np.testing.assert_allclose(decode_values(same, bits, 3), 1.5, rtol=1e-6)


def test_codes_are_those_of_their_width() -> None:
    scales = np.array([1.0, 2.0], "<f4").tobytes()
    codes = encode_symbols(np.array([15, 3, 2], np.uint8))
    assert len(decode_values(scales + b"\x01" + codes, 4, 3)) == 3
    beyond = encode_symbols(np.array([16, 3, 2], np.uint8))
    with pytest.raises(WireError, match="a code exceeds 4 bits"):
        decode_values(scales + b"\x01" + beyond, 4, 3)
    with pytest.raises(WireError, match="a code exceeds 16 bits"):
        decode_values(scales + b"\x01" + codes, 16, 3)
    for wrong in (b"", bytes(11), bytes(13)):
        with pytest.raises(WireError, match="length of the values differs"):
            decode_values(wrong, 32, 3)
    with pytest.raises(WireError, match="NaN or infinity"):
        decode_values(np.array([1.0, np.inf, 2.0], "<f4").tobytes(), 32, 3)


@pytest.mark.parametrize("count", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_every_block_has_its_scales(count: int) -> None:
    values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    data, received = encode_values(values, 8)
    blocks = -(-count // BLOCK)
    scales = np.frombuffer(data[: 8 * blocks], "<f4").reshape(blocks, 2)
    for row, block in zip(scales, np.split(np.abs(values), range(BLOCK, count, BLOCK)), strict=True):
        assert row.tolist() == [block.min(), block.max()]
    assert np.array_equal(decode_values(data, 8, count), received)
    # A sign and the mean magnitude of its block, also where the last one is short.
    means = np.concatenate(
        [
            np.full(len(block), np.abs(block.astype(np.float64)).mean())
            for block in np.split(values, range(BLOCK, count, BLOCK))
        ]
    )
    np.testing.assert_allclose(encode_values(values, 1)[1], np.sign(values) * means, rtol=1e-6)
