"""The page on pre-trained networks shows how to use your own images."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from tests.backbones import backbone as chain
from torch import nn

import wayfare
from wayfare.errors import ScenarioError
from wayfare.learning.backbones import Backbone, features_of, load_backbone
from wayfare.learning.data import ImageArrays
from wayfare.studies.single import Execution

PAGE = Path(__file__).parent.parent.parent / "docs/how-to/pretrained.md"


def test_the_lines_on_the_page_make_a_task_of_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    section = PAGE.read_text(encoding="utf-8").partition("## Your own images\n")[2]
    lines = section[section.index("    images = ") :].partition("\n\n")[0]
    rng, labels = np.random.default_rng(0), np.arange(48, dtype=np.uint8) % 3
    pictures = rng.integers(0, 60, (48, 3, 20, 24), np.uint8) + 60 * labels[:, None, None, None]
    names = {
        **{"wayfare": wayfare, "nn": nn, "ImageArrays": ImageArrays},
        **{"features_of": features_of, "load_backbone": load_backbone},
        **{"train_images": pictures, "train_labels": labels, "test_images": pictures, "test_labels": labels},
    }
    exec(dedent(lines).replace("160", "32"), names)
    small = ["mobility.width_m=150", "mobility.height_m=150", "learning.evaluate_every_rounds=20"]
    record = wayfare.run(
        wayfare.load("fashion-small", ["rounds=20", "fleet.devices=2", "learning.batch_size=4", *small]),
        "statistics:means",
        task=names["task"],
        out=tmp_path / "runs",
        execution=Execution(device="cpu"),
    )
    assert record.evaluations["score"][-1] > 0.5


BYTES, LABELS = np.zeros((6, 3, 32, 32), np.uint8), np.arange(6) % 2


def made(module: nn.Module, features: int) -> Backbone:
    return Backbone(name="mine", module=module, features=features, mean=(0.0,) * 3, deviation=(1.0,) * 3)


SHAPE = "must be an array of bytes (uint8) of the shape (n, channels, height, width) with 1 or 3 channels"


@pytest.mark.parametrize(
    ("images", "labels", "field", "value", "rule"),
    [
        (BYTES / np.float32(255), LABELS, "train_images", "float32 (6, 3, 32, 32)", f"{SHAPE}: (255 * images).round()"),
        (BYTES.transpose(0, 2, 3, 1), LABELS, "train_images", "uint8 (6, 32, 32, 3)", SHAPE),
        (BYTES[:, 0], LABELS, "train_images", "uint8 (6, 32, 32)", SHAPE),
        (BYTES[:0], LABELS[:0], "train_images", "uint8 (0, 3, 32, 32)", SHAPE),
        (BYTES.tolist(), LABELS, "train_images", "list", SHAPE),
        (BYTES, LABELS[:5], "train_labels", "5 labels", "must be as many as images: 6"),
        (BYTES, LABELS.tolist(), "train_labels", "list", "must be an array of as many labels as images: 6"),
        (BYTES, None, "train_labels", "NoneType", "must be an array of as many labels as images: 6"),
    ],
)
def test_images_that_are_not_bytes_are_rejected(
    images: Any, labels: Any, field: str, value: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values between 0 and 1 would give the features of black images."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    with pytest.raises(ScenarioError) as raised:
        features_of("signs", ImageArrays(images, labels, BYTES, LABELS), chain(), 32)
    assert (raised.value.field, raised.value.value) == (field, value)
    assert raised.value.rule.startswith(rule)


def test_views_and_read_only_images_have_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reversed channels (BGR) are a view with a negative stride."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), np.uint8)
    view = images[:, ::-1]
    view.flags.writeable = False
    labels = np.zeros(20, np.uint8)
    for given, plain in ((view, view.copy()), (images, images)):
        expected = features_of("plain", ImageArrays(plain, labels, plain, labels), chain(), 32)
        (tmp_path / "features").rename(tmp_path / f"features {given is view}")
        found = features_of("given", ImageArrays(given, labels, given, labels), chain(), 32)
        assert np.array_equal(found.train, expected.train)


@pytest.mark.parametrize("pixels", [0, 31.5, "160"])
def test_a_size_of_images_is_a_number(pixels: Any) -> None:
    with pytest.raises(ScenarioError, match=r"pixels = .*: must be a whole number of at least 1"):
        features_of("signs", ImageArrays(BYTES, LABELS, BYTES, LABELS), chain(), pixels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "efficientnet-lite0"}, r"backbone = 'str': must be a Backbone, as load_backbone\("),
        ({"images": BYTES}, r"images = 'ndarray': must be ImageArrays"),
        ({"pixels": True}, r"pixels = True: must be a whole number"),
        (
            {"backbone": made(nn.Flatten(), 7)},
            r"backbone_pixels = 32: mine gives 3072 features .*, but 7 for",
        ),
        ({"backbone": made(nn.Conv2d(3, 2, 1), 2)}, r"backbone_pixels = 32: mine gives 2048 features .*, but 2 for"),
        ({"backbone": made(nn.Linear(5, 5), 5)}, r"backbone_pixels = 32: mine does not take images of this size"),
    ],
)
def test_what_is_no_backbone_for_these_images_is_rejected(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    usual = {"name": "signs", "images": ImageArrays(BYTES, LABELS, BYTES, LABELS), "backbone": chain(), "pixels": 32}
    with pytest.raises(ScenarioError, match=message):
        features_of(**(usual | arguments))
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("name", ["../up", "a/b c", "x" * 300])
def test_features_of_any_name_are_in_the_cache(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    features_of(name, ImageArrays(BYTES, LABELS, BYTES, LABELS), chain(), 32)
    assert len(list((tmp_path / "features").glob("*.npz"))) == 1


@pytest.mark.parametrize(
    ("settings", "field", "rule"),
    [
        ({"mean": (0.0,)}, "mean", "must be three finite numbers, deviations other than 0"),
        ({"mean": (math.nan,) * 3}, "mean", "must be three finite numbers, deviations other than 0"),
        ({"deviation": (1.0, 0.0, 1.0)}, "deviation", "must be three finite numbers, deviations other than 0"),
        ({"interpolation": "nearest"}, "interpolation", "must be bicubic or bilinear"),
    ],
)
def test_preprocessing_that_cannot_be_applied_is_rejected(settings: dict[str, Any], field: str, rule: str) -> None:
    usual = {"name": "mine", "module": nn.Flatten(), "features": 3, "mean": (0.0,) * 3, "deviation": (1.0,) * 3}
    with pytest.raises(ScenarioError, match=rule) as raised:
        Backbone(**(usual | settings))
    assert raised.value.field == field
