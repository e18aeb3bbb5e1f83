"""The begun download of a device: its manifest and the parts that have arrived.

Parts stay in memory while a contact lasts. When it ends, or the device stops, the new ones are appended to a file
beside the store, so that a download that completes in one contact costs no writes. Nothing here needs to be durable: a
lost part is requested again, and the digest in the manifest checks the result.
"""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path
from typing import IO

from wayfare.codec.errors import WireError
from wayfare.field.runtime.messages import Begun, Manifest, parse

_SUFFIX = ".download"
# Offset, length and checksum of a part, before its bytes. The first record is the manifest, with the time as offset.
_RECORD = struct.Struct("<QII")


class BegunDownload:
    def __init__(self, store: Path) -> None:
        self._file = store.with_name(store.name + _SUFFIX)
        self.manifest: Manifest | None = None
        self.began_s = 0.0  # by the machine's clock
        self._parts: dict[int, bytes] = {}
        self._saved: set[int] = set()
        self._load()

    @property
    def total_bytes(self) -> int:
        return 0 if self.manifest is None else self.manifest.size_bytes + self.manifest.handed_bytes

    @property
    def left_bytes(self) -> int:
        return self.total_bytes - sum(map(len, self._parts.values()))

    def as_message(self) -> Begun | None:
        """What the server needs to know to continue this download; None if there is none."""
        found = self.manifest
        if found is None or not self._parts:
            return None
        return Begun(
            version=found.version,
            base_version=found.base_version,
            digest=found.digest,
            handed_digest=found.handed_digest,
            left_bytes=self.left_bytes,
        )

    def begin(self, manifest: Manifest) -> None:
        """Download this manifest; parts of another one are dropped."""
        if manifest != self.manifest:
            self.clear()
            self.manifest, self.began_s = manifest, time.time()

    def add(self, offset: int, piece: bytes) -> None:
        self._parts[offset] = piece

    def holes(self) -> list[tuple[int, int]]:
        """The missing byte ranges, as (begin, end)."""
        holes, at = [], 0
        for offset in sorted(self._parts):
            if offset > at:
                holes.append((at, offset))
            at = offset + len(self._parts[offset])
        return [*holes, (at, self.total_bytes)] if at < self.total_bytes else holes

    def data(self) -> bytes:
        return b"".join(self._parts[offset] for offset in sorted(self._parts))

    def save(self) -> None:
        """Append the parts that are not in the file yet."""
        fresh = [offset for offset in sorted(self._parts) if offset not in self._saved]
        if self.manifest is None or not fresh:
            return
        with self._file.open("ab" if self._saved else "wb") as file:
            if not self._saved:
                _append(file, int(self.began_s), self.manifest.packed())
            for offset in fresh:
                _append(file, offset, self._parts[offset])
        self._saved.update(fresh)

    def clear(self) -> None:
        self.manifest = None
        self._parts, self._saved = {}, set()
        self._file.unlink(missing_ok=True)

    def _load(self) -> None:
        """Read the file up to the first incomplete record, and cut it off there."""
        try:
            content = self._file.read_bytes()
        except OSError:
            return
        at = 0
        while len(content) - at >= _RECORD.size:
            offset, length, checksum = _RECORD.unpack_from(content, at)
            piece = content[at + _RECORD.size : at + _RECORD.size + length]
            if len(piece) < length or zlib.crc32(piece) != checksum:
                break
            if self.manifest is None:
                try:
                    self.manifest, self.began_s = parse(Manifest, piece), float(offset)
                except WireError:
                    break
            else:
                self._parts[offset] = piece
            at += _RECORD.size + length
        if self.manifest is None or self.left_bytes < 0:
            self.clear()
            return
        self._saved = set(self._parts)
        if at < len(content):
            with self._file.open("ab") as file:
                file.truncate(at)


def _append(file: IO[bytes], offset: int, piece: bytes) -> None:
    file.write(_RECORD.pack(offset, len(piece), zlib.crc32(piece)) + piece)
