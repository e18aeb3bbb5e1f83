"""Decodes the files of any source into arrays in one canonical order."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.errors import InputError
from wayfare.learning.data.png import read_png
from wayfare.learning.data.sets import ImageArrays, ImageSet, Pixels

Files = Mapping[str, bytes]
"""The files of a source by their names, without folders."""

_CIFAR_TRAIN, _CIFAR_TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
_CIFAR_LABELS = ("train_lables.json", "test_lables.json")  # the package's spelling
_FASHION_IDX = tuple(f"{split}-{part}-ubyte" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))


def layouts(name: str) -> list[tuple[str, ...]]:
    """The sets of file names in which a data set is distributed, the safest first."""
    if name == "cifar10":
        batches = (*_CIFAR_TRAIN, *_CIFAR_TEST)
        return [
            tuple(f"{batch}.bin" for batch in batches),
            (*(f"{batch}.png" for batch in batches), *_CIFAR_LABELS),
            batches,
        ]
    return [_FASHION_IDX]


def decode(spec: ImageSet, files: Files, source: str) -> ImageArrays:
    """The arrays of the first complete layout; `source` appears in error messages."""
    complete = [layout for layout in layouts(spec.name) if all(name in files for name in layout)]
    if not complete:
        raise InputError(f"{source}: {_missing(spec, files)}")
    layout = complete[0]
    readers: dict[str, Callable[[ImageSet, Files, str], ImageArrays]] = {
        "data_batch_1.bin": _cifar_binary,
        "data_batch_1.png": _cifar_pictures,
        "data_batch_1": _cifar_pickles,
        _FASHION_IDX[0]: _fashion_idx,
    }
    return readers[layout[0]](spec, files, source)


def _missing(spec: ImageSet, files: Files) -> str:
    nearest = max(layouts(spec.name), key=lambda layout: sum(name in files for name in layout))
    lacking = [name for name in nearest if name not in files]
    if len(lacking) == len(nearest):
        return f"contains no file of {spec.title}, such as {nearest[0]}"
    return f"{spec.title} is incomplete: {', '.join(lacking)} missing"


def _cifar_binary(spec: ImageSet, files: Files, source: str) -> ImageArrays:
    """Records of one label and 3,072 pixels, channel after channel."""
    record = 1 + int(np.prod(spec.image))

    def batch(name: str) -> tuple[Pixels, Pixels]:
        content = files[name]
        if not content or len(content) % record:
            raise InputError(f"{source}: {name} has {len(content)} bytes, which is not a multiple of an image")
        table = np.frombuffer(content, np.uint8).reshape(-1, record)
        return table[:, 1:].reshape(-1, *spec.image), table[:, 0]

    return _joined([[batch(f"{name}.bin") for name in names] for names in (_CIFAR_TRAIN, _CIFAR_TEST)])


def _cifar_pictures(spec: ImageSet, files: Files, source: str) -> ImageArrays:
    """PNG files with one image per row, pixel after pixel; all labels of a split in one list."""
    channels, height, width = spec.image

    def images(name: str) -> Pixels:
        rows = read_png(files[name], f"{source}: {name}")
        if rows.shape[1] != height * width:
            raise InputError(f"{source}: {name} has rows of {rows.shape[1]} pixels instead of {height * width}")
        return rows.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)

    splits = []
    for names, labels_name in zip((_CIFAR_TRAIN, _CIFAR_TEST), _CIFAR_LABELS, strict=True):
        pixels = np.concatenate([images(f"{name}.png") for name in names])
        labels = _bytes_of(_json(files[labels_name], f"{source}: {labels_name}"), f"{source}: {labels_name}")
        if labels.shape != (len(pixels),):
            raise InputError(f"{source}: {labels_name} has {labels.size} labels for {len(pixels)} images")
        splits.append([(pixels, labels)])
    return _joined(splits)


def _cifar_pickles(spec: ImageSet, files: Files, source: str) -> ImageArrays:
    """Python 2 dictionaries with rows of 3,072 pixels, channel after channel, and a list of labels."""

    def batch(name: str) -> tuple[Pixels, Pixels]:
        where = f"{source}: {name}"
        try:
            table = _ArraysOnly(io.BytesIO(files[name]), encoding="bytes").load()
            pixels, labels = np.asarray(table[b"data"]), _bytes_of(table[b"labels"], where)
            if pixels.dtype != np.uint8:
                raise InputError(f"{where}: pixels must be bytes, not {pixels.dtype}")
            return pixels.reshape(len(labels), *spec.image), labels
        except InputError:
            raise
        # A truncated or altered pickle can raise almost any exception.
        except Exception as error:
            raise InputError(f"{where}: not a batch of {spec.title}: {error}") from None

    return _joined([[batch(name) for name in names] for names in (_CIFAR_TRAIN, _CIFAR_TEST)])


class _ArraysOnly(pickle.Unpickler):
    """Reads only arrays, because a pickle can call any function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}
        if module.split(".")[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):
            # How Python 3 writes bytes for Python 2.
            return lambda text, codec: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _fashion_idx(spec: ImageSet, files: Files, source: str) -> ImageArrays:
    """IDX files: big-endian counts, then the bytes."""

    def array(name: str, dimensions: int) -> Pixels:
        content, where = _gunzipped(files[name], f"{source}: {name}"), f"{source}: {name}"
        header = 4 * (1 + dimensions)
        if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
            raise InputError(f"{where}: not an idx file of bytes in {dimensions} dimensions")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        if len(content) != header + int(np.prod(shape, dtype=np.uint64)):
            raise InputError(f"{where}: has {len(content) - header} bytes, which is not {' x '.join(map(str, shape))}")
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)

    splits = []
    for images_name, labels_name in (_FASHION_IDX[:2], _FASHION_IDX[2:]):
        images, labels = array(images_name, 3), array(labels_name, 1)
        if len(images) != len(labels) or images.shape[1:] != spec.image[1:]:
            raise InputError(f"{source}: {images_name} has shape {images.shape} and {labels_name} {len(labels)} labels")
        splits.append([(images.reshape(-1, *spec.image), labels)])
    return _joined(splits)


def _joined(splits: Sequence[Sequence[tuple[Pixels, Pixels]]]) -> ImageArrays:
    arrays = [np.ascontiguousarray(np.concatenate(parts)) for split in splits for parts in zip(*split, strict=True)]
    return ImageArrays(*arrays)


def _bytes_of(numbers: object, where: str) -> Pixels:
    """Numbers from 0 to 255 as bytes; raise InputError for others instead of wrapping them."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise InputError(f"{where}: rows of different lengths") from None
    if array.dtype.kind not in "iu" or array.size == 0 or array.min() < 0 or array.max() > 255:
        raise InputError(f"{where}: must contain integers from 0 to 255")
    return array.astype(np.uint8)


def _json(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None


def _gunzipped(content: bytes, where: str) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: not a complete gzip file: {error}") from None
