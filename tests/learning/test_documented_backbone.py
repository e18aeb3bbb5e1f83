"""The page on pre-trained networks: its Python runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from tests.image_files import small_arrays, small_set

import wayfare
from wayfare.learning.backbones import features_of, load_backbone
from wayfare.learning.data import CIFAR10, IMAGE_SETS, ImageArrays
from wayfare.learning.data.cache import save_images
from wayfare.world import draw_world

PAGE = (Path(__file__).parents[2] / "docs/how-to/pretrained.md").read_text(encoding="utf-8")
SMALL = [
    *("rounds=8", "fleet.devices=3", "learning.batch_size=4", "mobility.width_m=150", "mobility.height_m=150"),
]


def code_of(heading: str) -> str:
    """The first indented block below a heading."""
    match = re.search(rf"^## {heading}\n.*?\n((?:    [^\n]*\n|\n)+)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None
    return dedent(match[1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user with a network, and a small CIFAR-10."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    arrays = small_arrays(CIFAR10, train=120, test=7)
    monkeypatch.setitem(IMAGE_SETS, CIFAR10.name, small_set(CIFAR10, arrays))  # type: ignore[arg-type]
    save_images(IMAGE_SETS[CIFAR10.name], arrays)
    code = code_of("Your own network")
    # A process imports one file of a name.
    (tmp_path / f"{tmp_path.name}.py").write_text(code, encoding="utf-8")
    known: dict[str, Any] = {}
    exec(code, known)
    torch.save(known["Small"]().state_dict(), tmp_path / "small.pth")
    return tmp_path


def test_your_own_network_is_trained_in_every_way(folder: Path) -> None:
    own = [*SMALL, "learning.task=cifar10", f"learning.backbone={folder.name}.py", "learning.backbone_pixels=32"]
    found = {}
    for trained in ("head", "norms", "adapters", "last-block", "everything"):
        blocks = [] if trained in ("head", "everything") else ["learning.trained_blocks=1"]
        settings = [*own, f"learning.trained={trained}", *blocks]
        found[trained] = wayfare.run(wayfare.load(overrides=settings), "mads", out=folder / trained).parameters
    body = 32 * 64 * 9 + 64 + 2 * 64
    assert found["head"] == 650
    assert found["norms"] == 650 + 2 * 64
    assert found["last-block"] == 650 + body
    assert found["everything"] == 650 + body + 3 * 32 * 9 + 32 + 2 * 32
    assert found["norms"] < found["adapters"] < found["last-block"]
    both = wayfare.compare(
        wayfare.load(overrides=own), ["statistics", "mads-rd:from-statistics"], seeds=1, out=folder, jobs=1
    )
    assert all(scheme.uploads_per_device > 0 for scheme in both.schemes)
    draw_world.cache_clear()


def test_features_of_your_own_images_make_a_task(folder: Path) -> None:
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (2, 60, 3, 32, 32), np.uint8)
    labels = np.arange(60) % 43
    known: dict[str, Any] = {
        **{"wayfare": wayfare, "nn": torch.nn, "features_of": features_of, "ImageArrays": ImageArrays},
        **{"train_images": train, "train_labels": labels, "test_images": test, "test_labels": labels},
        # Tests do not wait for EfficientNet-Lite0.
        "load_backbone": lambda name: load_backbone(f"{folder.name}.py"),
    }
    code = code_of("Your own images").replace("1280", "64").replace("160)", "32)")
    exec(code, known)
    found = wayfare.compare(
        wayfare.load(overrides=SMALL), ["statistics", "mads"], seeds=1, task=known["task"], out=folder, jobs=1
    )
    assert len(found.schemes) == 2
