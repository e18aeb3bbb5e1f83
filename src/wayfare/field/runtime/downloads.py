"""Downloads of the global model: whole, or only the entries that changed since the device's version.

A delta carries new values, not differences, so the device's model is bit-identical to the server's. The state that a
server rule hands to one device (`ServerRule.handed`) follows the bytes of the model.

A download that a device has begun is served until the device has it, or wants another: it stays in memory, and moves to
disk when memory is full or the server stops. Each device has at most one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Buffer
from wayfare.codec.wire import Layout
from wayfare.field.runtime.database import tree_bytes
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.messages import Begun
from wayfare.field.runtime.model_encoding import fast_digest, packed
from wayfare.field.runtime.outbox import digest
from wayfare.files import write_atomically

# Encoded models in memory, and begun ones on disk. The oldest beyond these sizes are dropped.
_KEPT_BYTES, _STORED_BYTES = 128 << 20, 512 << 20
_DIGEST_BYTES = 64
# The bytes of a value in a delta, at least: three that are not compressed.
_LEAST_VALUE_BYTES = 3

Key = tuple[int, int | None]  # version and base version


@dataclass(frozen=True, slots=True)
class Download:
    """An encoded model: a delta on a base version, or a whole model without one."""

    version: int
    base_version: int | None
    data: bytes
    digest: str  # of the resulting model

    @property
    def key(self) -> Key:
        return self.version, self.base_version


@dataclass(frozen=True, slots=True)
class Handed:
    """The state handed to one device with a version of the model; no bytes if there is none."""

    version: int
    data: bytes
    digest: str  # of the bytes


_NOTHING = Handed(0, b"", digest(b""))


class Downloads:
    def __init__(
        self, layout: Layout, folder: Path, kept_bytes: int = _KEPT_BYTES, stored_bytes: int = _STORED_BYTES
    ) -> None:
        self._layout, self._folder, self._kept_bytes, self._stored_bytes = layout, folder, kept_bytes, stored_bytes
        self._made: OrderedDict[Key, Download] = OrderedDict()
        self._handed: OrderedDict[int, Handed] = OrderedDict()  # the last one of each device
        self._begun: dict[int, Key] = {}  # the last offer to each device
        self._digest = -1, ""  # of the last version; several devices download it
        # Parts are read by another thread than the one that makes downloads.
        self._lock = threading.Lock()

    def offer(self, ledger: Ledger, version: int, have_version: int | None) -> Download:
        """Encode a version for a device that has another, as delta or whole, whichever is smaller."""
        if have_version is not None and have_version <= version:
            newer = ledger.changed_between(have_version, version)
            # If most entries changed, as after an optimiser step, a delta is hardly shorter, and only one device
            # can use it.
            if 8 * int(np.count_nonzero(newer)) < 7 * len(newer):
                return self._made_of(ledger, version, have_version, newer)
        return self._made_of(ledger, version, None)

    def resume(
        self, ledger: Ledger, device: int, begun: Begun, version: int, have_version: int | None
    ) -> Download | None:
        """The download that a device has begun; None if it is gone, or the newest version takes fewer bytes."""
        found, handed = self._find((begun.version, begun.base_version)), self.handed(device)
        if found is None or (found.digest, handed.digest) != (begun.digest, begun.handed_digest):
            return None
        if begun.version > version or begun.base_version not in (None, have_version):
            return None
        if have_version is not None and have_version <= version:
            changed = int(np.count_nonzero(ledger.changed_between(have_version, version)))
            if _LEAST_VALUE_BYTES * changed < begun.left_bytes:
                newest = self.offer(ledger, version, have_version)
                return found if begun.left_bytes <= len(newest.data) else None
        return found

    def begin(self, device: int, offered: Download) -> None:
        """A device downloads this now: keep it until the device asks for another."""
        with self._lock:
            self._begun[device] = offered.key

    def hand_down(self, ledger: Ledger, device: int, version: int) -> Handed:
        """The state that the rule hands to a device with a version."""
        made = self._handed.pop(device, None)
        if made is None or made.version != version:
            state = ledger.handed(device, version)
            data = tree_bytes(state) if state else b""
            made = Handed(version, data, digest(data))
        self._handed[device] = made
        while len(self._handed) > 1 and sum(len(one.data) for one in self._handed.values()) > self._kept_bytes:
            self._handed.popitem(last=False)
        return made

    def handed(self, device: int) -> Handed:
        """The state last handed to a device."""
        return self._handed.get(device, _NOTHING)

    def part(self, device: int, version: int, base_version: int | None, begin: int, end: int) -> Buffer:
        """Bytes of the model and of the handed state after it; fewer than requested if they are no longer kept."""
        model = self._find((version, base_version))
        if model is None:
            return b""
        piece, size = memoryview(model.data)[begin:end], len(model.data)
        behind = self.handed(device).data[max(begin - size, 0) : max(end - size, 0)]
        return b"".join((piece, behind)) if behind else piece

    def store_begun(self) -> None:
        """Write all begun downloads to disk, before the server stops."""
        with self._lock:
            for made in self._made.values():
                self._store(made)

    def _made_of(
        self, ledger: Ledger, version: int, base_version: int | None, newer: NDArray[np.bool_] | None = None
    ) -> Download:
        if (found := self._find((version, base_version))) is not None:
            return found
        model = ledger.model_at(version)
        if self._digest[0] != version:
            self._digest = version, fast_digest(model)
        made = Download(version, base_version, packed(model, newer, self._layout), self._digest[1])
        with self._lock:
            self._keep(made)
        return made

    def _find(self, key: Key) -> Download | None:
        """A download in memory, or from disk."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
            try:
                content = self._file(key).read_bytes()
            except OSError:
                return None
            made = Download(*key, content[_DIGEST_BYTES:], content[:_DIGEST_BYTES].decode("latin-1").rstrip())
            self._keep(made)
            return made

    def _keep(self, made: Download) -> None:
        self._made[made.key] = made
        while len(self._made) > 1 and sum(len(one.data) for one in self._made.values()) > self._kept_bytes:
            self._store(self._made.popitem(last=False)[1])

    def _store(self, made: Download) -> None:
        """Write a download to disk if a device has begun it, and drop what nobody needs, then the oldest."""
        wanted, file = set(self._begun.values()), self._file(made.key)
        if made.key in wanted and not file.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not durable: a lost file costs a device one download.
            write_atomically(file, made.digest.encode().ljust(_DIGEST_BYTES) + made.data, durable=False)
        names = {self._file(key).name for key in wanted}
        stored = sorted(self._folder.glob("*.model"), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        room = self._stored_bytes
        for each in stored:
            room -= each.stat().st_size
            # Before every device has called again after a restart, nobody knows which files are needed.
            if room < 0 or (len(self._begun) > len(stored) and each.name not in names):
                each.unlink(missing_ok=True)

    def _file(self, key: Key) -> Path:
        version, base_version = key
        return self._folder / f"{version}-{'whole' if base_version is None else base_version}.model"
