"""The cache of features notices what the hash in a file's name does not cover when it was computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.backbones import backbone as chain
from tests.image_files import small_arrays
from tests.learning.test_backbones import ARRAYS, Means, backbone
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.learning.backbones import Backbone, activations_of, features, features_of
from wayfare.learning.data import CIFAR10, ImageArrays, cached_features
from wayfare.progress import listening


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    monkeypatch.setattr(features, "available_cores", lambda: 1)
    return tmp_path / "features"


def stored_differences(images: ImageArrays, network: Backbone) -> list[float]:
    """How far what the cache gives is from the network itself: features, and activations at a cut."""
    stored = features_of("small", images, network, 32).train, activations_of("small", images, network, 32, 2).train
    pictures = torch.from_numpy(images.train_images)
    with torch.inference_mode():
        cut = nn.Sequential(*network.blocks[:2])(network.prepare(pictures, 32))
        expected = network(pictures, 32), cut.permute(0, 2, 3, 1)
    pairs = zip(map(torch.from_numpy, stored), expected, strict=True)
    return [float((found.float() - wanted).abs().max()) for found, wanted in pairs]


def test_weights_and_images_that_change_in_place_give_other_features() -> None:
    network, images = chain(), small_arrays(CIFAR10, train=20, test=7)
    assert max(stored_differences(images, network)) < 0.01
    # As when a module is trained after its features were computed.
    network.module.train()
    with torch.no_grad():
        for parameter in network.module.parameters():
            parameter.neg_()
    assert max(stored_differences(images, network)) < 0.01
    assert not network.module.training
    images.train_images[:] = 255 - images.train_images
    assert max(stored_differences(images, network)) < 0.01


def test_changed_code_gives_other_features_though_weights_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features_of("small", ARRAYS, backbone(), 32)
    monkeypatch.setattr(Means, "forward", lambda self, images: images.amax(dim=(2, 3)).repeat(1, 2).cumsum(1))
    expected = backbone()(torch.from_numpy(ARRAYS.train_images), 32)
    found = features_of("small", ARRAYS, backbone(), 32)
    torch.testing.assert_close(torch.from_numpy(found.train).float(), expected, atol=2e-3, rtol=0)


def test_a_network_stays_as_it_is_while_its_features_are_computed() -> None:
    """Runs in other threads use it meanwhile, so it may not move to a GPU."""
    network, images = chain(), small_arrays(CIFAR10, train=20, test=7)

    def where() -> list[int]:
        return [parameter.data_ptr() for parameter in network.module.parameters()]

    seen, before = list[list[int]](), where()
    with listening(lambda what, done, total: seen.append(where())):
        features_of("small", images, network, 32)
    assert seen
    assert all(each == before for each in seen)


def test_features_have_full_precision_whatever_the_process_uses() -> None:
    seen, before = list[str](), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with listening(lambda what, done, total: seen.append(torch.get_float32_matmul_precision())):
            features_of("small", small_arrays(CIFAR10, train=20, test=7), chain(), 32)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


def test_features_stay_in_the_cache_as_long_as_they_are_mapped() -> None:
    found = features_of("small", ARRAYS, backbone(), 32)
    first, (cached,) = found.train[0].copy(), cached_features()
    assert (cached.state, cached.remove()) == ("in use", False)
    features._loaded.cache_clear()
    assert cached.state == "in use"
    part = torch.from_numpy(found.test)
    del found
    assert cached.state == "in use"
    del part
    assert (cached.state, cached.remove()) == ("ready", True)
    assert not cached_features()
    assert np.array_equal(features_of("small", ARRAYS, backbone(), 32).train[0], first)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, images: torch.rand(len(images), 6),
        lambda self, images: images.mean(dim=(2, 3)).repeat(1, 2).cumsum(1) - images.mean(dim=(0, 2, 3)).repeat(2),
        lambda self, images: images.mean(dim=(0, 2, 3)).repeat(2).view(1, 6),
    ],
    ids=["random", "less the mean of the batch", "one vector for all"],
)
def test_features_that_are_not_those_of_one_image_are_rejected(
    forward: Callable[[Any, Tensor], Tensor], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Means, "forward", forward)
    with pytest.raises(ScenarioError, match=r"learning\.backbone = 'means': gives other features .* in a batch"):
        features_of("small", ARRAYS, backbone(), 32)
    assert not [*folder.glob("*.npz"), *folder.glob(".*")]


def test_a_file_that_lacks_images_is_made_again(folder: Path) -> None:
    first = features_of("small", ARRAYS, backbone(), 32)
    train, test = np.array(first.train), np.array(first.test)
    (file,) = folder.glob("*.npz")
    for fewer in ({"train": train[:10], "test": test}, {"train": train, "test": test[:, :3]}):
        np.savez(file, **fewer)
        again = features_of("small", ARRAYS, backbone(), 32)
        assert (again.train.shape, again.test.shape) == (train.shape, test.shape)
