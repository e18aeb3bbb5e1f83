"""The files of cached features, which `wayfare.learning.backbones.features` computes: what there is, and removal.

A process that computes a file holds the lock beside it. On POSIX a process that has mapped a file holds a shared lock
of it; Windows removes no file that is mapped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeAlias

from wayfare.errors import InputError
from wayfare.files import DRAFT_SUFFIX, lock, writing
from wayfare.places import data_folder

State: TypeAlias = Literal["ready", "in use", "computing", "interrupted"]
# Eight letters of the hash are enough to distinguish the files of a cache.
_REST_OF_HASH = re.compile(r"(?<=-[0-9a-f]{8})[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class CachedFeatures:
    """A file of features or activations, and its drafts."""

    file: Path

    @property
    def name(self) -> str:
        """Image set, backbone, pixels, cut, and the beginning of the hash."""
        return _REST_OF_HASH.sub("", self.file.stem)

    @property
    def size_bytes(self) -> int:
        total = 0
        for part in (self.file, *drafts_of(self.file)):
            # The process that computes it may end meanwhile.
            with suppress(OSError):
                total += part.stat().st_size
        return total

    @property
    def state(self) -> State:
        if _is_locked(lock_file(self.file)):
            return "computing"
        if not self.file.exists():
            return "interrupted"
        return "in use" if _is_locked(self.file) else "ready"

    def remove(self) -> bool:
        """Remove the file and its drafts, unless a process computes or uses them; whether they were removed."""
        with writing(self.file, "cannot be removed"), lock_file(self.file).open("w") as held:
            try:
                lock(held.fileno())
            except BlockingIOError:
                return False
            if _is_locked(self.file):
                return False
            for part in (self.file, *drafts_of(self.file)):
                part.unlink(missing_ok=True)
        return True


def features_folder() -> Path:
    return data_folder() / "features"


def lock_file(file: Path) -> Path:
    return file.with_suffix(".lock")


def drafts_of(file: Path) -> list[Path]:
    return [*file.parent.glob(f".{file.name}.*{DRAFT_SUFFIX}")]


def cached_features() -> list[CachedFeatures]:
    """All features in the cache, by name; also those of which a killed process left only a draft."""
    folder = features_folder()
    drafts = (draft.name.removeprefix(".").rpartition(".npz.")[0] for draft in folder.glob(f".*.npz.*{DRAFT_SUFFIX}"))
    files = {*folder.glob("*.npz"), *(folder / f"{stem}.npz" for stem in drafts)}
    return [CachedFeatures(file) for file in sorted(files)]


def features_named(patterns: Sequence[str]) -> list[CachedFeatures]:
    """The cached features with one of some names, in which * stands for any letters. Raise InputError without any."""
    there = cached_features()
    for pattern in patterns:
        if not any(fnmatchcase(one.name, pattern) for one in there):
            raise InputError(f"{pattern}: no features in {features_folder()} have this name")
    return [one for one in there if any(fnmatchcase(one.name, pattern) for pattern in patterns)]


def _is_locked(file: Path) -> bool:
    try:
        with file.open("rb+") as opened:
            lock(opened.fileno())
    except BlockingIOError:
        return True
    except OSError:
        # There is no such file, or it cannot be written.
        return False
    return False
