"""All samples of a folder: found by scanning it, read by number."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.folders.formats import FORMATS, IMAGES, Array, Images, Rows, cached_name
from wayfare.methods.from_file import own_folders
from wayfare.methods.own_code import described

_log = logging.getLogger("wayfare.field")
_ROWS_AT_ONCE = 8192
# What a file is recognised by: names, sizes and times of change.
_Signature: TypeAlias = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a task expects of samples."""

    shape: tuple[int, ...]  # of one input
    classes: int = 0  # labels are 0 to classes - 1; 0: labels are not classes
    class_names: tuple[str, ...] = ()  # of labels that are texts
    real_numbers: bool = False  # convert integers, and bytes (pixels) to values between 0 and 1
    load: Callable[[Path], Any] | None = None  # reads the folder instead of the known formats


@dataclass(frozen=True, slots=True)
class _Part:
    inputs: Rows
    targets: Array


class FolderSamples:
    """The samples of one folder. `rescan` finds new, changed and removed files."""

    def __init__(self, folder: Path, wanted: Wanted, cache: Path) -> None:
        if not folder.is_dir():
            raise ScenarioError("data", str(folder), "is not a folder")
        self.folder, self._wanted, self._cache = folder, wanted, cache
        self._parts: dict[str, tuple[_Signature, _Part | None]] = {}
        self._ends: Ints = np.zeros(0, dtype=np.int64)
        self._kept: list[_Part] = []
        self.rescan()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def targets(self) -> Array:
        """The target of every sample."""
        return np.concatenate([part.targets for part in self._kept]) if self._kept else np.zeros(0, dtype=np.int64)

    def batch(self, samples: Ints) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some samples, in their order."""
        owners = np.searchsorted(self._ends, samples, side="right")
        begins = np.concatenate([[0], self._ends])
        order: list[Ints] = []
        inputs, targets = [], []
        for owner in np.unique(owners):
            chosen = np.flatnonzero(owners == owner)
            rows, part = samples[chosen] - begins[owner], self._kept[owner]
            order.append(chosen)
            read = np.asarray(part.inputs[rows]).reshape(len(rows), *self._wanted.shape)
            # Part by part, because files with pixels may lie beside files with real numbers.
            inputs.append(_real(read) if self._wanted.real_numbers else read)
            targets.append(part.targets[rows])
        back = np.argsort(np.concatenate(order))
        return _tensor(np.concatenate(inputs)[back]), _tensor(np.concatenate(targets)[back])

    def rescan(self) -> bool:
        """Look for files; return whether anything changed."""
        found = dict(self._found())
        if found == {name: signature for name, (signature, _) in self._parts.items()}:
            return False
        before = self._parts
        self._parts = {
            name: before[name] if name in before and before[name][0] == signature else (signature, self._read(name))
            for name, signature in sorted(found.items())
        }
        self._kept = [part for _, part in self._parts.values() if part is not None]
        self._ends = np.cumsum([len(part.targets) for part in self._kept], dtype=np.int64)
        self._drop_from_cache()
        files = sum(len(signature) for signature, part in self._parts.values() if part is not None)
        _log.info("data", extra={"folder": str(self.folder), "samples": len(self), "files": files})
        return True

    def _found(self) -> Iterator[tuple[str, _Signature]]:
        """Every part of the folder. A name that starts with a dot may still be written."""
        if self._wanted.load is not None:
            yield "", _signature(self.folder)
            return
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield entry.name, _signature(Path(entry.path))
                elif Path(entry.name).suffix.lower() in FORMATS:
                    status = entry.stat()
                    yield entry.name, ((entry.name, status.st_size, status.st_mtime_ns),)

    def _read(self, name: str) -> _Part | None:
        try:
            return self._checked(*self._opened(name))
        except Exception as error:  # formats raise many types, and a damaged file must not stop a vehicle
            # With its place in the user's file, if it is in their `load`.
            reason = described(error, own_folders())
            _log.warning("%s is skipped: %s", self.folder / name, reason, extra={"file": name})
            return None

    def _opened(self, name: str) -> tuple[Rows, Array]:
        wanted, path = self._wanted, self.folder / name
        if wanted.load is not None:
            return _loaded(wanted.load(self.folder))
        if not path.is_dir():
            return FORMATS[path.suffix.lower()](path, self._cache)
        files = [path / file for file, *_ in _signature(path) if Path(file).suffix.lower() in IMAGES]
        if not files:
            raise InputError("has no images")
        return Images(files, wanted.shape), np.full(len(files), name)

    def _checked(self, inputs: Rows, targets: Array) -> _Part:
        wanted = self._wanted
        if len(inputs) != len(targets) or not len(targets):
            raise InputError(f"has {len(inputs)} inputs and {len(targets)} labels")
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = targets[:, 0]
        if targets.dtype.kind in "OUS":
            targets = self._numbered(targets)
        elif wanted.classes and targets.dtype.kind not in "iu":
            raise InputError(f"labels must be classes, not {targets.dtype}")
        if wanted.classes and not 0 <= int(targets.min()) <= int(targets.max()) < wanted.classes:
            raise InputError(f"has labels from {targets.min()} to {targets.max()}; must be 0 to {wanted.classes - 1}")
        if isinstance(inputs, np.ndarray):
            if int(np.prod(inputs.shape[1:])) != int(np.prod(wanted.shape)):
                raise InputError(f"its inputs have shape {inputs.shape[1:]}, the task expects {wanted.shape}")
            _reject_missing(inputs)
        return _Part(inputs, targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64))

    def _numbered(self, texts: Array) -> Ints:
        numbers = {name: number for number, name in enumerate(self._wanted.class_names)}
        names = [text.decode() if isinstance(text, bytes) else str(text) for text in texts.tolist()]
        unknown = sorted({name for name in names if name not in numbers})
        if unknown:
            known = ", ".join(numbers) or "none: give `classes` as a list of names"
            raise InputError(f"has the label {unknown[0]!r}; the task knows {known}")
        return np.array([numbers[name] for name in names], dtype=np.int64)

    def _drop_from_cache(self) -> None:
        """Delete copies of files that changed or are gone."""
        if self._cache.is_dir():
            used = {cached_name(self.folder / name) for name in self._parts if (self.folder / name).is_file()}
            for file in self._cache.glob("*.raw"):
                if file.name not in used:
                    file.unlink(missing_ok=True)


class _Items:
    """The inputs of a data set that gives one sample at a time."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, rows: Ints) -> Array:
        return np.stack([np.asarray(self._items[int(row)][0]) for row in rows])


def _loaded(data: Any) -> tuple[Rows, Array]:
    """What `load` of a task returned: a pair of arrays, or a data set of pairs."""
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple):
        inputs, targets = (each.numpy() if isinstance(each, Tensor) else np.asanyarray(each) for each in data)
        return inputs, targets
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
        raise InputError(f"load returned {type(data).__name__}; must return a pair of arrays or a data set")
    found = next((vars(data)[name] for name in ("targets", "labels") if name in getattr(data, "__dict__", {})), None)
    targets = [data[row][1] for row in range(len(data))] if found is None else found
    return _Items(data), np.asarray(targets)


def _signature(folder: Path) -> _Signature:
    """Names, sizes and times of all files below a folder."""
    found: list[tuple[str, int, int]] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                path = Path(root) / name
                status = path.stat()
                found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(found)


def _reject_missing(inputs: Array) -> None:
    if inputs.dtype.kind == "f":
        for first in range(0, len(inputs), _ROWS_AT_ONCE):
            block = inputs[first : first + _ROWS_AT_ONCE]
            bad = np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1))
            if len(bad):
                raise InputError(f"NaN or infinity in sample {first + int(bad[0])}")
    elif inputs.dtype.kind not in "iub":
        raise InputError(f"inputs must be numbers, not {inputs.dtype}")


def _real(values: Array) -> Array:
    return values.astype(np.float32) / np.float32(255 if values.dtype == np.uint8 else 1)


def _tensor(values: Array) -> Tensor:
    if values.dtype.kind == "f":
        return torch.from_numpy(values.astype(np.float32))
    return torch.from_numpy(values if values.dtype == np.uint8 else values.astype(np.int64))
