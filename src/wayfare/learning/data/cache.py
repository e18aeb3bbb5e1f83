"""The cache of data sets: one file per set, written atomically."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np

from wayfare.errors import InputError, UnavailableError
from wayfare.files import lock, open_atomically, writing
from wayfare.learning.data.sets import ImageArrays, ImageSet
from wayfare.places import data_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Facts about a verified set in the cache; a set that differs raises an error instead."""

    name: str
    file: Path
    size_bytes: int
    train: int
    test: int
    first_labels: list[int]
    class_counts: list[int]  # of the training images
    mean: list[float]  # of the channels of the training images, as shares of 255
    deviation: list[float]
    sha256: str


def cached_file(spec: ImageSet) -> Path:
    return data_folder() / f"{spec.name}.npz"


def load_images(spec: ImageSet) -> ImageArrays:
    """The arrays of a set in the cache, shared by all runs of a process."""
    file = cached_file(spec)
    try:
        changed_ns = file.stat().st_mtime_ns
    except OSError:
        raise UnavailableError(
            f"{spec.name}: {spec.title} is not in {file.parent}; fetch it with {fetch_call(spec.name)}"
        ) from None
    arrays = _read(file, changed_ns, spec.name)
    if arrays.train_images.shape != (spec.train, *spec.image) or arrays.test_images.shape != (spec.test, *spec.image):
        raise _damaged(file, spec.name, "the shapes are wrong")
    return arrays


def verify_images(spec: ImageSet) -> Verification:
    arrays, file = load_images(spec), cached_file(spec)
    spec.check(arrays, str(file))
    mean, deviation = arrays.moments()
    return Verification(
        name=spec.name,
        file=file,
        size_bytes=file.stat().st_size,
        train=len(arrays.train_images),
        test=len(arrays.test_images),
        first_labels=arrays.train_labels[: len(spec.first_labels)].tolist(),
        class_counts=np.bincount(arrays.train_labels, minlength=len(spec.classes)).tolist(),
        mean=mean,
        deviation=deviation,
        sha256=spec.sha256,
    )


def save_images(spec: ImageSet, arrays: ImageArrays) -> Path:
    file = cached_file(spec)
    with writing(file, "cannot be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(file) as target:
            np.savez(target, **{field.name: getattr(arrays, field.name) for field in fields(arrays)})
    return file


def read_archive(file: Path, name: str) -> ImageArrays:
    """The arrays of a file that `save_images` wrote; NumPy verifies its checksums."""
    try:
        with file.open("rb") as content, np.load(content, allow_pickle=False) as archive:
            arrays = ImageArrays(**{field.name: archive[field.name] for field in fields(ImageArrays)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _damaged(file, name, str(error)) from None
    except (MemoryError, OverflowError, SyntaxError, RuntimeError) as error:
        # A damaged header can declare any shape.
        raise _damaged(file, name, type(error).__name__) from None
    if any(getattr(arrays, field.name).dtype != np.uint8 for field in fields(arrays)):
        raise _damaged(file, name, "the arrays are not bytes")
    return arrays


@contextmanager
def fetch_lock(name: str) -> Iterator[None]:
    """Wait until no other process fetches the same set. The system releases the lock when its process ends."""
    path = data_folder() / f"{name}.lock"
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        lock(file.fileno(), wait=True)
        yield


@lru_cache(maxsize=2)
def _read(file: Path, changed_ns: int, name: str) -> ImageArrays:
    return read_archive(file, name)


def _damaged(file: Path, name: str, reason: str) -> InputError:
    return InputError(f"{file}: damaged: {reason}; fetch it again with {fetch_call(name)}")


def fetch_call(name: str) -> str:
    return f"`fetch_images(IMAGE_SETS[{name!r}])`"
