"""Networks that look at a signal as rows, which not every order of its axes in memory allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.image_files import small_arrays
from torch import Tensor, nn

from wayfare.engine import LocalTraining, choose_engine
from wayfare.learning.backbones import Backbone, features_of
from wayfare.learning.batches import Batches
from wayfare.learning.data import CIFAR10
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.base import load_vector
from wayfare.learning.models.layout import fastest_layout
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.recalibrate import Recalibration
from wayfare.learning.tasks import own_task
from wayfare.learning.tasks.own import OwnTask


class AsRows(nn.Module):
    """The end of many published networks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        signal = self.layers(images)
        logits: Tensor = self.head(signal.view(signal.size(0), -1))
        return logits


def rows_task() -> OwnTask:
    data = np.random.default_rng(0).standard_normal((40, 3, 6, 6)).astype(np.float32), np.arange(40) % 4
    return own_task("rows", train=data, test=data, network=AsRows)


def test_an_own_network_that_looks_at_rows_is_evaluated_recalibrated_and_stacked() -> None:
    task = rows_task()
    model = task.model.initial(np.random.default_rng(0))
    module = task.model.module().eval()
    load_vector(module, model)
    with torch.no_grad():
        right = module(task.test[0]).argmax(dim=1) == task.test[1]
    assert Evaluator(task)(model).score == pytest.approx(float(right.double().mean()))
    assert Recalibration(task, torch.arange(20))(model).isfinite().all()
    batches = Batches([np.arange(20)] * 3, 4, 5, seed=0)
    assert choose_engine("auto", LocalTraining(task=task, batches=batches, learning_rate=0.1)).name == "stacked"


class RowFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 32, stride=16)

    def forward(self, images: Tensor) -> Tensor:
        signal = self.layer(images).repeat(1, 2, 2, 2)
        return signal.view(signal.size(0), -1)


def test_a_backbone_that_looks_at_rows_gives_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    arrays = small_arrays(CIFAR10, train=3, test=2)
    backbone = Backbone(
        name="rows", module=RowFeatures(), features=16, mean=(127.0,) * 3, deviation=(128.0,) * 3, trial_pixels=32
    )
    assert features_of("small", arrays, backbone, 32).train.shape == (3, 16)


def test_only_known_networks_change_the_order_of_axes() -> None:
    on_cpu = torch.device("cpu")
    assert fastest_layout(Resnet9(), on_cpu) == torch.channels_last
    assert fastest_layout(rows_task().model, on_cpu) == torch.contiguous_format
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert fastest_layout(Resnet9(), torch.device("cuda")) == torch.contiguous_format
