"""Features of an image set, computed once and cached by content: weights, preprocessing and images."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from wayfare.files import DRAFT_SUFFIX, lock, open_atomically, writing
from wayfare.learning.backbones.base import Backbone
from wayfare.learning.data import ImageArrays
from wayfare.learning.data.sets import Pixels
from wayfare.places import data_folder
from wayfare.progress import report_progress

_AT_ONCE = 64
# Part of the key: change it when the same images and weights give other features.
_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Feature vectors (n, features) of training and test images. Half precision: a file of half the size."""

    train: NDArray[np.float16]
    test: NDArray[np.float16]


def features_of(name: str, images: ImageArrays, backbone: Backbone, pixels: int) -> Features:
    """The features of an image set, from the cache or computed now.

    The first process computes them and the others wait. A killed process leaves nothing but a draft, which the next
    one removes.
    """
    key = hashlib.sha256(f"{_VERSION} {backbone.digest} {pixels} {_digest(images)}".encode()).hexdigest()[:20]
    stem = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in Path(backbone.name).name)
    file = data_folder() / "features" / f"{name}-{stem}-{pixels}px-{key}.npz"
    found = _read(file)
    if found is not None:
        return found
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        waiting = file.with_suffix(".lock").open("w")
    with waiting:
        lock(waiting.fileno(), wait=True)
        for draft in file.parent.glob(f".{file.name}.*{DRAFT_SUFFIX}"):
            draft.unlink(missing_ok=True)
        return _read(file) or _compute(name, file, images, backbone, pixels)


def _compute(name: str, file: Path, images: ImageArrays, backbone: Backbone, pixels: int) -> Features:
    total, done = len(images.train_images) + len(images.test_images), 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def of(pictures: Pixels) -> NDArray[np.float16]:
        nonlocal done
        found = np.empty((len(pictures), backbone.features), np.float16)
        for begin in range(0, len(pictures), _AT_ONCE):
            batch = torch.from_numpy(pictures[begin : begin + _AT_ONCE]).to(device)
            found[begin : begin + len(batch)] = backbone(batch, pixels).cpu().half().numpy()
            done += len(batch)
            report_progress(f"features of {name}", done, total)
        return found

    with torch.inference_mode():
        features = Features(of(images.train_images), of(images.test_images))
    backbone.module.cpu()
    with writing(file, "cannot be written"), open_atomically(file) as target:
        np.savez(target, train=features.train, test=features.test)
    return features


def _read(file: Path) -> Features | None:
    """The features of a file; None if there is none, or if it is damaged and has to be made again."""
    try:
        return _loaded(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


@lru_cache(maxsize=1)
def _loaded(file: Path, changed_ns: int) -> Features:
    """Shared by all runs of a process."""
    with file.open("rb") as content, np.load(content, allow_pickle=False) as stored:
        return Features(stored["train"], stored["test"])


@lru_cache(maxsize=2)
def _digest(images: ImageArrays) -> str:
    """Counted once for all runs of a process."""
    return images.digest()
