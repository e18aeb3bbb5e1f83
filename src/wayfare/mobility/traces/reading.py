"""Trace files as numbered lines: plain or compressed, whole or damaged, never more than one line in memory."""

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
"""What a compressed file or an archive raises when it is cut short or altered."""

_OPENERS: tuple[tuple[bytes, Callable[[Path], object]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"BZh", bz2.open),
)


class BadLines:
    """What becomes of a line that cannot be used: an error or, when lenient, one more on the count."""

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
        """The same rule for one file of an archive or a folder."""
        return BadLines(f"{self.file}/{member}", lenient=self.lenient)

    def include(self, other: BadLines) -> None:
        self.count += other.count
        self.first = self.first or other.first

    def nothing_left(self, what: str) -> TraceError:
        """The error of a file in which nothing could be used."""
        if self.first is not None:
            return TraceError(
                self.first.file, self.first.line, f"{self.first.reason} (and no other line holds {what} either)"
            )
        return TraceError(self.file, None, f"the file holds no {what}")


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed by what it holds and not by its name."""
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
    """The lines of a stream, stripped, from number 1; blank ones are left out."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE_BYTES + 1)
        except DAMAGED as error:
            bad.add(number, f"the data is damaged or cut short: {error}")
            return
        if not raw:
            return
        if len(raw) > MAX_LINE_BYTES:
            # No format has such lines, and skipping to its end could take for ever.
            raise TraceError(bad.file, number, f"a line of more than {MAX_LINE_BYTES:,} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            bad.add(number, "not text in UTF-8")
            continue
        if text:
            yield number, text


def number_in(text: str, what: str, limit: float) -> float:
    """A finite number; ValueError in the user's words otherwise."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} = {text[:40]!r} is not a number") from None
    if not -limit <= value <= limit:
        raise ValueError(f"{what} = {text[:40]} is not between -{limit:g} and {limit:g}")
    return value


def time_in(text: str, what: str = "time") -> float:
    return number_in(text, what, TIME_LIMIT_S)


def place_in(text: str, what: str) -> float:
    return number_in(text, what, PLACE_LIMIT_M)


def name_in(text: str) -> str:
    name = text.strip()
    if not name:
        raise ValueError("a node without a name")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name of more than {MAX_NAME_LENGTH} characters")
    return name


def cells_of(text: str) -> list[str]:
    """The cells of one line of CSV; every row is a line of its own."""
    try:
        return [cell.strip() for cell in next(csv.reader([text]))]
    except csv.Error as error:
        raise ValueError(f"not a line of CSV: {error}") from None
