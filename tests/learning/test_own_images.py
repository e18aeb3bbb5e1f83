"""The page on pre-trained networks shows how to use your own images."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from torch import nn

import wayfare
from wayfare.learning.backbones import features_of, load_backbone
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
