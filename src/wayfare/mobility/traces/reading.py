"""Read trace files as numbered lines, plain or compressed, with at most one line in memory."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from wayfare.errors import TraceError

MAX_LINE_BYTES = 65_536
MAX_NAME_LENGTH = 200
TIME_LIMIT_S = 1e12
PLACE_LIMIT_M = 1e9

DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError)
"""The exceptions of a truncated or altered compressed file or archive."""

_OPENERS: tuple[tuple[bytes, Callable[[Path], object]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"BZh", bz2.open),
)


class BadLines:
    """Handles invalid lines: raises an error or, if lenient, counts them."""

    def __init__(self, file: Path | str, *, lenient: bool) -> None:
        self.file, self.lenient = file, lenient
        self.count = 0
        self.first: TraceError | None = None

    def add(self, line: int | None, reason: str) -> None:
        error = TraceError(self.file, line, reason)
        if not self.lenient:
            raise error
        self.count += 1
        self.first = self.first or error

    def inside(self, member: str) -> BadLines:
        """The handler for one file of an archive or a folder."""
        return BadLines(f"{self.file}/{member}", lenient=self.lenient)

    def include(self, other: BadLines) -> None:
        self.count += other.count
        self.first = self.first or other.first

    def nothing_left(self, content: str) -> TraceError:
        """The error for a file without a valid line."""
        if self.first is not None:
            return TraceError(
                self.first.file, self.first.line, f"{self.first.reason} (and no other line has {content})"
            )
        return TraceError(self.file, None, f"the file has no {content}")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, decompressed according to its content, not its name."""
    try:
        if not path.is_file():
            raise TraceError(path, None, "no such file" if not path.exists() else "not a file")
        with path.open("rb") as raw:
            magic = raw.read(6)
        for prefix, opener in _OPENERS:
            if magic.startswith(prefix):
                return cast("IO[bytes]", opener(path))
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise TraceError(path, None, f"cannot be opened: {error}") from None


def numbered_lines(stream: IO[bytes], bad: BadLines) -> Iterator[tuple[int, str]]:
    """The stripped lines of a stream, numbered from 1, without blank ones."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE_BYTES + 1)
        except DAMAGED as error:
            bad.add(number, f"the data is damaged or truncated: {error}")
            return
        if not raw:
            return
        if len(raw) > MAX_LINE_BYTES:
            # No format has such lines, and skipping one could take forever.
            raise TraceError(bad.file, number, f"the line has more than {MAX_LINE_BYTES:,} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            bad.add(number, "not UTF-8 text")
            continue
        if text:
            yield number, text


def number_in(text: str, what: str, limit: float) -> float:
    """A number within +-limit. Anything else raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} = {text[:40]!r} is not a number") from None
    if not -limit <= value <= limit:
        raise ValueError(f"{what} = {text[:40]} is not between -{limit:g} and {limit:g}")
    return value


def time_in(text: str, what: str = "time") -> float:
    return number_in(text, what, TIME_LIMIT_S)


def metres_in(text: str, what: str) -> float:
    return number_in(text, what, PLACE_LIMIT_M)


def name_in(text: str) -> str:
    name = text.strip()
    if not name:
        raise ValueError("a node has no name")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name has more than {MAX_NAME_LENGTH} characters")
    return name


def cells_of(text: str) -> list[str]:
    """The cells of one line of CSV. Rows must not span lines."""
    try:
        return [cell.strip() for cell in next(csv.reader([text]))]
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from None
