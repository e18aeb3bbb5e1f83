"""Files of samples: `.npz`, `.pt`, `.parquet` and `.csv` with inputs and labels, and images in class folders."""

from __future__ import annotations

import csv
import hashlib
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from wayfare.arrays import Ints
from wayfare.errors import InputError, UnavailableError

_log = logging.getLogger("wayfare.field")
Array: TypeAlias = NDArray[Any]
INPUTS = ("inputs", "input", "x", "data", "images", "features")
TARGETS = ("labels", "label", "targets", "target", "y", "class")
_ROWS_AT_ONCE = 8192


class Rows(Protocol):
    """Inputs of a part: an array, or something that reads rows on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


def read_npz(file: Path, cache: Path) -> tuple[Rows, Array]:
    """Two arrays. Those of `np.savez` are mapped; compressed ones are copied into the cache."""
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        inputs, targets = _names(archive.files, file.name)
        labels: Array = archive[targets]
        mapped = _mapped_member(file, f"{inputs}.npy")
        if mapped is not None:
            return mapped, labels
        return stored(cache, file, [archive[inputs]]), labels


def read_pt(file: Path, cache: Path) -> tuple[Rows, Array]:
    """A dictionary or a pair of tensors, mapped."""
    content = torch.load(file, mmap=True, weights_only=True, map_location="cpu")
    if isinstance(content, Mapping):
        inputs, targets = (content[name] for name in _names([*content], file.name))
    elif isinstance(content, tuple | list) and len(content) == 2:
        inputs, targets = content
    else:
        raise InputError("must hold a dictionary or a pair of inputs and labels")
    return inputs.numpy(), targets.numpy()


def read_parquet(file: Path, cache: Path) -> tuple[Rows, Array]:
    """One column of labels; the inputs are all other columns, or one column of lists."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError("needs pyarrow: pip install 'wayfare[parquet]'") from None
    table = parquet.ParquetFile(file)
    names = table.schema_arrow.names
    target = _target(names, file.name)
    labels: list[Array] = []

    def rows() -> Iterator[Array]:
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
            columns = {name: batch.column(name) for name in names}
            labels.append(np.asarray(columns.pop(target).to_pylist()))
            arrays = [np.asarray(column.to_pylist()) for column in columns.values()]
            yield arrays[0] if len(arrays) == 1 and arrays[0].ndim > 1 else np.stack(arrays, axis=1)

    inputs = stored(cache, file, rows())
    return inputs, np.concatenate(labels)


def read_csv(file: Path, cache: Path) -> tuple[Rows, Array]:
    """A table with a header: one column of labels, all others numbers."""
    labels: list[str] = []

    def rows(lines: Iterator[list[str]], target: int) -> Iterator[Array]:
        while block := list(islice(lines, _ROWS_AT_ONCE)):
            labels.extend(row.pop(target) for row in block)
            yield np.array(block, dtype=np.float32)

    with file.open(newline="", encoding="utf-8") as opened:
        lines = csv.reader(opened)
        names = next(lines, [])
        target = names.index(_target(names, file.name)) if names else 0
        inputs = stored(cache, file, rows(lines, target))
    return inputs, _numbers(labels)


FORMATS: Mapping[str, Callable[[Path, Path], tuple[Rows, Array]]] = {
    ".npz": read_npz,
    ".pt": read_pt,
    ".parquet": read_parquet,
    ".csv": read_csv,
}
IMAGES = (".png", ".jpg", ".jpeg")


class Images:
    """Images of one shape, decoded when they are read."""

    def __init__(self, files: Sequence[Path], shape: tuple[int, ...]) -> None:
        try:
            import PIL  # noqa: F401
        except ImportError:
            raise UnavailableError("images need Pillow: pip install pillow") from None
        if len(shape) not in (2, 3):
            raise InputError(f"images need a sample of 2 or 3 axes, the task expects {shape}")
        self._files = files
        self._damaged: set[int] = set()
        # Grey images have no axis of channels, or one of length 1 at either end.
        self._first = len(shape) == 3 and shape[0] in (1, 3)
        self._channels = 1 if len(shape) < 3 else shape[0] if self._first else shape[-1]
        self._shape = shape
        height, width = shape[1:] if self._first else shape[:2]
        self._size = width, height

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, rows: Ints) -> Array:
        return np.stack([self._at(int(row)) for row in rows])

    def _at(self, row: int) -> Array:
        """An image. If it is damaged or gone, the next one takes its place: one file must not stop a vehicle."""
        for place in (*range(row, len(self)), *range(row)):
            if place in self._damaged:
                continue
            file = self._files[place]
            try:
                return self._read(file)
            except Exception as error:  # decoders raise many types
                self._damaged.add(place)
                _log.warning("%s is skipped: %s: %s", file, type(error).__name__, error, extra={"file": str(file)})
        raise InputError(f"{self._files[0].parent}: none of its {len(self)} images can be read")

    def _read(self, file: Path) -> Array:
        from PIL import Image

        with Image.open(file) as image:
            pixels = np.asarray(image.convert("L" if self._channels == 1 else "RGB").resize(self._size))
        if self._channels > 1 and self._first:
            pixels = pixels.transpose(2, 0, 1)
        return pixels.reshape(self._shape)


def stored(cache: Path, file: Path, blocks: Iterable[Array]) -> Array:
    """Copy numbers block by block into a file of the cache, and map it."""
    cache.mkdir(parents=True, exist_ok=True)
    name, rows = cached_name(file), 0
    shape: tuple[int, ...] = ()
    kind: type[np.generic] = np.float32
    with (cache / name).open("wb") as opened:
        for block in blocks:
            kind = np.uint8 if block.dtype == np.uint8 else np.float32
            shape, rows = block.shape[1:], rows + len(block)
            opened.write(np.ascontiguousarray(block, dtype=kind).tobytes())
    if not rows:
        raise InputError("has no samples")
    return np.memmap(cache / name, kind, "r", shape=(rows, *shape))


def cached_name(file: Path) -> str:
    status = file.stat()
    key = f"{file.name} {status.st_size} {status.st_mtime_ns}"
    return f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.raw"


def _mapped_member(file: Path, name: str) -> Array | None:
    """Map an array in an archive; None if it is compressed."""
    with zipfile.ZipFile(file) as archive, file.open("rb") as opened:
        member = archive.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        opened.seek(member.header_offset + 26)
        name_bytes, extra_bytes = np.frombuffer(opened.read(4), "<u2")
        opened.seek(member.header_offset + 30 + int(name_bytes) + int(extra_bytes))
        version = np.lib.format.read_magic(opened)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read(opened)
        mapped: Array = np.memmap(file, kind, "r", offset=opened.tell(), shape=shape, order="F" if fortran else "C")
        return mapped


def _names(names: Sequence[Any], where: str) -> tuple[str, str]:
    target = _target(names, where)
    others = [name for name in names if name != target]
    inputs = others[0] if len(others) == 1 else next((name for name in INPUTS if name in others), None)
    if inputs is None:
        raise InputError(f"has {', '.join(map(str, names))}; name the inputs `inputs` and the labels `labels`")
    return inputs, target


def _target(names: Sequence[str], where: str) -> str:
    found = next((name for name in TARGETS if name in names), None)
    if found is None:
        raise InputError(f"has {', '.join(map(str, names)) or 'no header'}; one must be called `label`")
    return found


def _numbers(labels: Sequence[str]) -> Array:
    """Labels of a text file as integers or real numbers, or as the texts that they are."""
    for kind in (np.int64, np.float32):
        try:
            return np.array(labels, dtype=kind)
        except ValueError:
            continue
    return np.array(labels)
