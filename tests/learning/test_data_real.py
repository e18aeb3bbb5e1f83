"""The real data sets, if they are in the cache."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from wayfare.learning.data import CIFAR10, FASHION, ImageSet, cached_file, load_images, verify_images

# SHA-1 of data_batch_1.bin, ..., data_batch_5.bin and test_batch.bin as others have published them.
CIFAR10_BATCHES = (
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
)


def need(spec: ImageSet) -> None:
    if not cached_file(spec).is_file():
        pytest.skip(f"{spec.title} is not in the cache")


@pytest.mark.parametrize("spec", [CIFAR10, FASHION], ids=lambda spec: spec.name)
def test_a_cached_set_is_the_published_one(spec: ImageSet) -> None:
    need(spec)
    found = verify_images(spec)
    assert (found.train, found.test) == (spec.train, spec.test)
    assert tuple(found.first_labels) == spec.first_labels
    assert found.class_counts == [spec.train // 10] * 10
    assert found.mean == pytest.approx(spec.mean, abs=5e-5)
    assert found.deviation == pytest.approx(spec.deviation, abs=5e-5)


def test_cifar10_is_byte_for_byte_the_official_binary_version() -> None:
    need(CIFAR10)
    arrays = load_images(CIFAR10)
    assert arrays.train_images[0, :, 0, 0].tolist() == [59, 62, 63]
    images = [*np.split(arrays.train_images, 5), arrays.test_images]
    labels = [*np.split(arrays.train_labels, 5), arrays.test_labels]
    for batch, published in enumerate(CIFAR10_BATCHES):
        records = np.column_stack([labels[batch], images[batch].reshape(10_000, -1)])
        assert hashlib.sha1(records.tobytes(), usedforsecurity=False).hexdigest() == published


def test_fashion_has_the_mean_that_others_report() -> None:
    need(FASHION)
    arrays = load_images(FASHION)
    assert arrays.train_images.mean(dtype=np.float64) == pytest.approx(72.94035223214286, rel=1e-12)
    assert arrays.train_images.std(dtype=np.float64) == pytest.approx(90.02118235130519, rel=1e-9)
    assert arrays.test_labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
