"""A reader of PNG images: 8-bit RGB, not interlaced, all five filters (PNG specification, third edition).

Two filters predict a pixel from its left neighbour, so a row cannot be decoded at once. But all pixels on a diagonal
depend only on the two previous diagonals, and a diagonal of an image is one strided slice of its memory.
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
    """The pixels of an image, (height, width, 3); `name` appears in error messages."""
    header, packed = b"", []
    for kind, chunk in _chunks(content, name):
        if kind == b"IHDR":
            header = chunk
        elif kind == b"IDAT":
            packed.append(chunk)
    if len(header) != 13:
        raise InputError(f"{name}: a PNG image without a header")
    width, height, depth, colour, *others = struct.unpack(">IIBBBBB", header)
    if (depth, colour, *others) != (8, _RGB, 0, 0, 0) or not width or not height:
        raise InputError(f"{name}: must be 8-bit RGB and not interlaced")
    inflate, expected = zlib.decompressobj(), height * (1 + _CHANNELS * width)
    try:
        # Limit the length: a small file must not fill the memory.
        rows = inflate.decompress(b"".join(packed), expected)
    except zlib.error as error:
        raise InputError(f"{name}: damaged image: {error}") from None
    if len(rows) != expected or inflate.decompress(inflate.unconsumed_tail, 1) or not inflate.eof:
        raise InputError(f"{name}: damaged image: it does not contain {height} rows of {width} pixels")
    table = np.frombuffer(rows, np.uint8).reshape(height, 1 + _CHANNELS * width)
    if table[:, 0].max() > 4:
        raise InputError(f"{name}: damaged image: filter {table[:, 0].max()} does not exist")
    return _unfiltered(table[:, 0], table[:, 1:].reshape(height, width, _CHANNELS))


def _chunks(content: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of every chunk, up to the end mark; a truncated file raises InputError."""
    if not content.startswith(_SIGNATURE):
        raise InputError(f"{name}: not a PNG image")
    offset = len(_SIGNATURE)
    while offset + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, offset)
        chunk = content[offset + 8 : offset + 8 + length]
        if offset + 12 + length > len(content):
            break
        if zlib.crc32(chunk, zlib.crc32(kind)) != struct.unpack_from(">I", content, offset + 8 + length)[0]:
            raise InputError(f"{name}: damaged image: a checksum is wrong")
        if kind == b"IEND":
            return
        yield kind, chunk
        offset += 12 + length
    raise InputError(f"{name}: the image is truncated")


def _unfiltered(filters: NDArray[np.uint8], residuals: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Add the prediction of its filter to every residual, from the pixels left (a), above (b) and above left (c).

    None: 0.  Sub: a.  Up: b.  Average: floor((a + b) / 2).  Paeth: the one of a, b, c nearest to a + b - c.
    """
    height, width, channels = residuals.shape
    # Pixels outside the image are 0: one row above and one column to the left.
    padded = np.zeros((height + 1, width + 1, channels), np.uint8)
    padded[1:, 1:] = residuals
    flat, row = padded.reshape(-1, channels), width + 1
    masks = [(filters == number)[:, None] for number in range(5)]
    used = [bool(mask.any()) for mask in masks]
    for diagonal in range(height + width - 1):
        first, last = max(0, diagonal - width + 1), min(height - 1, diagonal)
        # One row down and one pixel to the left is `width` entries further.
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
    """The one of left, above and above left that is nearest to a + b - c; ties go to the first."""
    to_a, to_b, to_c = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
    return np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
