from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.image_files import chunk, png

from wayfare.errors import InputError
from wayfare.learning.data.png import read_png


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2**32))
def test_every_mixture_of_filters_is_undone(height: int, width: int, filters: list[int], seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(read_png(png(pixels, filters), "picture"), pixels)


PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
WHOLE = png(PIXELS, [1, 4])


@pytest.mark.parametrize("length", [0, 7, 8, 20, 33, len(WHOLE) // 2, len(WHOLE) - 13, len(WHOLE) - 1])
def test_a_picture_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=r"^batch\.png: "):
        read_png(WHOLE[:length], "batch.png")


def test_a_picture_with_any_byte_altered_is_refused_or_the_same() -> None:
    for place in range(len(WHOLE)):
        altered = bytearray(WHOLE)
        altered[place] ^= 0x40
        try:
            pixels = read_png(bytes(altered), "p")
        except InputError:
            continue
        assert np.array_equal(pixels, PIXELS)


def _picture(header: bytes, rows: bytes) -> bytes:
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ((2, 1, 16, 2, 0, 0, 0), bytes(13), "must be 8-bit RGB"),
        ((2, 1, 8, 6, 0, 0, 0), bytes(9), "must be 8-bit RGB"),
        ((2, 1, 8, 2, 0, 0, 1), bytes(7), "must be 8-bit RGB and not interlaced"),
        ((0, 1, 8, 2, 0, 0, 0), bytes(1), "must be 8-bit RGB"),
        ((2, 2, 8, 2, 0, 0, 0), bytes(7), "it does not contain 2 rows of 2 pixels"),
        ((2, 1, 8, 2, 0, 0, 0), bytes(14), "it does not contain 1 rows of 2 pixels"),
        ((2, 1, 8, 2, 0, 0, 0), bytes([5, 0, 0, 0, 0, 0, 0]), "filter 5 does not exist"),
    ],
)
def test_pictures_of_another_kind_are_refused(header: tuple[int, ...], rows: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_png(_picture(struct.pack(">IIBBBBB", *header), rows), "p")
