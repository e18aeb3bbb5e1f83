"""Small image sets in every format that a real one comes in."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfare.learning.data import CIFAR10, FASHION, ImageArrays, ImageSet

Pixels = NDArray[np.uint8]


def small_arrays(spec: ImageSet, train: int = 20, test: int = 4, seed: int = 0) -> ImageArrays:
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (count, *spec.image), dtype=np.uint8) for count in (train, test)]
    labels = [(np.arange(count) % 10).astype(np.uint8) for count in (train, test)]
    return ImageArrays(images[0], labels[0], images[1], labels[1])


def small_set(spec: ImageSet, arrays: ImageArrays, **changes: object) -> ImageSet:
    """The description of a real set, made to fit small arrays."""
    fitted = {"train": len(arrays.train_labels), "test": len(arrays.test_labels), "sha256": arrays.digest()}
    return replace(spec, **{**fitted, **changes})  # type: ignore[arg-type]


def small_cifar10() -> tuple[ImageSet, ImageArrays]:
    arrays = small_arrays(CIFAR10)
    return small_set(CIFAR10, arrays), arrays


def small_fashion() -> tuple[ImageSet, ImageArrays]:
    arrays = small_arrays(FASHION)
    return small_set(FASHION, arrays), arrays


def cifar_batches(arrays: ImageArrays) -> dict[str, tuple[Pixels, Pixels]]:
    """Five training batches and the test batch."""
    pieces = zip(np.split(arrays.train_images, 5), np.split(arrays.train_labels, 5), strict=True)
    batches = {f"data_batch_{number}": piece for number, piece in enumerate(pieces, start=1)}
    return {**batches, "test_batch": (arrays.test_images, arrays.test_labels)}


def cifar_binary(arrays: ImageArrays) -> dict[str, bytes]:
    return {
        f"{name}.bin": np.column_stack([labels, images.reshape(len(images), -1)]).tobytes()
        for name, (images, labels) in cifar_batches(arrays).items()
    }


def cifar_pickles(arrays: ImageArrays) -> dict[str, bytes]:
    """As Python 2 wrote them: byte strings for keys, protocol 2."""
    return {
        name: pickle.dumps({b"data": images.reshape(len(images), -1), b"labels": labels.tolist()}, protocol=2)
        for name, (images, labels) in cifar_batches(arrays).items()
    }


def cifar_pictures(arrays: ImageArrays) -> dict[str, bytes]:
    files = {
        f"{name}.png": png(images.transpose(0, 2, 3, 1).reshape(len(images), -1, 3), [4, 1, 0, 3, 2])
        for name, (images, _) in cifar_batches(arrays).items()
    }
    files["train_lables.json"] = json.dumps(arrays.train_labels.tolist()).encode()
    files["test_lables.json"] = json.dumps(arrays.test_labels.tolist()).encode()
    return files


def fashion_idx(arrays: ImageArrays) -> dict[str, bytes]:
    files = {}
    for split, images, labels in (
        ("train", arrays.train_images, arrays.train_labels),
        ("t10k", arrays.test_images, arrays.test_labels),
    ):
        files[f"{split}-images-idx3-ubyte.gz"] = gzip.compress(idx(images[:, 0]))
        files[f"{split}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels))
    return files


def idx(array: Pixels) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(file: Path, files: Mapping[str, bytes], inside: str) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def png(pixels: Pixels, filters: Sequence[int]) -> bytes:
    """A picture whose rows use the given filters in turn, each pixel by the letter of the specification."""
    height, width, channels = pixels.shape
    rows = []
    for y in range(height):
        kind = filters[y % len(filters)]
        row = [kind]
        for x in range(width):
            for channel in range(channels):
                a = int(pixels[y, x - 1, channel]) if x else 0
                b = int(pixels[y - 1, x, channel]) if y else 0
                c = int(pixels[y - 1, x - 1, channel]) if x and y else 0
                row.append((int(pixels[y, x, channel]) - _predicted(kind, a, b, c)) % 256)
        rows.append(bytes(row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(b"".join(rows))
    # In two pieces, as large pictures are.
    parts = [(b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", packed[:7]), (b"IDAT", packed[7:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _predicted(kind: int, a: int, b: int, c: int) -> int:
    if kind == 4:
        guess = a + b - c
        return min((abs(guess - a), 0, a), (abs(guess - b), 1, b), (abs(guess - c), 2, c))[2]
    return (0, a, b, (a + b) // 2)[kind]
