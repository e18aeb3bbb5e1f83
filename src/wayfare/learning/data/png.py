"""A reader of PNG pictures: 8-bit RGB, not interlaced, all five filters (PNG specification, third edition).

Two filters predict a pixel from its left neighbour, so a row cannot be undone at once. But all pixels on a diagonal
depend only on the two diagonals before it, and a diagonal of a picture is one strided slice of its memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wayfare.errors import InputError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB = 2
_CHANNELS = 3


def read_png(content: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels of a picture, (height, width, 3); `name` is for the error message."""
    header, packed = b"", []
    for kind, chunk in _chunks(content, name):
        if kind == b"IHDR":
            header = chunk
        elif kind == b"IDAT":
            packed.append(chunk)
    if len(header) != 13:
        raise InputError(f"{name}: a PNG picture without a header")
    width, height, depth, colour, *others = struct.unpack(">IIBBBBB", header)
    if (depth, colour, *others) != (8, _RGB, 0, 0, 0) or not width or not height:
        raise InputError(f"{name}: must be 8-bit RGB and not interlaced")
    inflate, expected = zlib.decompressobj(), height * (1 + _CHANNELS * width)
    try:
        # A bound on the length: a small file must not fill the memory.
        rows = inflate.decompress(b"".join(packed), expected)
    except zlib.error as error:
        raise InputError(f"{name}: damaged picture: {error}") from None
    if len(rows) != expected or inflate.decompress(inflate.unconsumed_tail, 1) or not inflate.eof:
        raise InputError(f"{name}: damaged picture: {height} rows of {width} pixels do not come out of it")
    table = np.frombuffer(rows, np.uint8).reshape(height, 1 + _CHANNELS * width)
    if table[:, 0].max() > 4:
        raise InputError(f"{name}: damaged picture: filter {table[:, 0].max()} does not exist")
    return _unfiltered(table[:, 0], table[:, 1:].reshape(height, width, _CHANNELS))


def _chunks(content: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of every chunk, up to the end mark; a file that was cut has none."""
    if not content.startswith(_SIGNATURE):
        raise InputError(f"{name}: not a PNG picture")
    place = len(_SIGNATURE)
    while place + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        chunk = content[place + 8 : place + 8 + length]
        if place + 12 + length > len(content):
            break
        if zlib.crc32(chunk, zlib.crc32(kind)) != struct.unpack_from(">I", content, place + 8 + length)[0]:
            raise InputError(f"{name}: damaged picture: a checksum is wrong")
        if kind == b"IEND":
            return
        yield kind, chunk
        place += 12 + length
    raise InputError(f"{name}: the picture ends too soon")


def _unfiltered(filters: NDArray[np.uint8], residuals: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Add to every residual what its filter predicts from the pixels to the left (a), above (b) and both (c).

    None: 0.  Sub: a.  Up: b.  Average: floor((a + b) / 2).  Paeth: whichever of a, b, c is nearest to a + b - c.
    """
    height, width, channels = residuals.shape
    # Outside the picture everything is 0: a row above it and a column to its left.
    padded = np.zeros((height + 1, width + 1, channels), np.uint8)
    padded[1:, 1:] = residuals
    flat, row = padded.reshape(-1, channels), width + 1
    masks = [(filters == number)[:, None] for number in range(5)]
    used = [bool(mask.any()) for mask in masks]
    for diagonal in range(height + width - 1):
        first, last = max(0, diagonal - width + 1), min(height - 1, diagonal)
        # One row down and one pixel to the left is `width` places on.
        start = (first + 1) * row + diagonal - first + 1
        stop = start + (last - first) * width + 1
        here = slice(start, stop, width)
        a = flat[start - 1 : stop - 1 : width].astype(np.int16)
        b = flat[start - row : stop - row : width].astype(np.int16)
        predicted = np.zeros_like(a)
        lines = slice(first, last + 1)
        if used[1]:
            np.copyto(predicted, a, where=masks[1][lines])
        if used[2]:
            np.copyto(predicted, b, where=masks[2][lines])
        if used[3]:
            np.copyto(predicted, (a + b) >> 1, where=masks[3][lines])
        if used[4]:
            c = flat[start - row - 1 : stop - row - 1 : width].astype(np.int16)
            np.copyto(predicted, _paeth(a, b, c), where=masks[4][lines])
        flat[here] += predicted.astype(np.uint8)
    return np.ascontiguousarray(padded[1:, 1:])


def _paeth(a: NDArray[np.int16], b: NDArray[np.int16], c: NDArray[np.int16]) -> NDArray[np.int16]:
    """Of left, above and above left the nearest to a + b - c; on a tie the one named first."""
    to_a, to_b, to_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    return np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
