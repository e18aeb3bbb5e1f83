"""Splits a data set into parts, for machines with a limit on the size of transfers."""

from __future__ import annotations

import re
from pathlib import Path

from wayfare.errors import InputError
from wayfare.files import writing
from wayfare.learning.data.cache import cached_file, load_images, read_archive
from wayfare.learning.data.sets import ImageArrays, ImageSet

_CHUNK_BYTES = 1 << 20


def pack_images(spec: ImageSet, folder: Path, part_bytes: int) -> list[Path]:
    """Split the cached file of a set into parts of at most `part_bytes`: `cifar10.npz.1of4`, ..."""
    spec.check(load_images(spec), str(cached_file(spec)))
    file = cached_file(spec)
    count = -(-file.stat().st_size // part_bytes)
    parts = [folder / f"{file.name}.{number}of{count}" for number in range(1, count + 1)]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for old in _parts_in(spec, folder):
            old.unlink()
        with file.open("rb") as source:
            for part in parts:
                part.write_bytes(source.read(part_bytes))
    return parts


def has_parts(spec: ImageSet, path: Path) -> bool:
    return (path.is_file() and path.suffix == ".npz") or (path.is_dir() and bool(_parts_in(spec, path)))


def read_parts(spec: ImageSet, path: Path, scratch: Path) -> ImageArrays:
    """The arrays of a copied cache file, or of the parts in a folder, joined in a temporary file."""
    if path.is_file():
        return read_archive(path, spec.name)
    parts = _parts_in(spec, path)
    counts = {_number_and_count(part)[1] for part in parts}
    if len(counts) > 1:
        raise InputError(f"{path}: contains parts of different splits ({', '.join(part.name for part in parts)})")
    (count,) = counts
    missing = set(range(1, count + 1)) - {_number_and_count(part)[0] for part in parts}
    if missing:
        names = ", ".join(f"{spec.name}.npz.{number}of{count}" for number in sorted(missing))
        raise InputError(f"{path}: {names} missing")
    joined = scratch / f"{spec.name}.npz"
    with joined.open("wb") as target:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
    return read_archive(joined, spec.name)


def _parts_in(spec: ImageSet, folder: Path) -> list[Path]:
    found = [path for path in folder.glob(f"{spec.name}.npz.*") if re.search(r"\.\d+of\d+$", path.name)]
    return sorted(found, key=_number_and_count)


def _number_and_count(part: Path) -> tuple[int, int]:
    number, _, count = part.suffix[1:].partition("of")
    return int(number), int(count)
