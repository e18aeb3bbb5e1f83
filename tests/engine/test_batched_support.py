"""Where kernels over all devices cannot be used, one line says why."""

from __future__ import annotations

import pytest
from tests.engine.jobs import job

from wayfare.engine import make_engine
from wayfare.engine.batched.support import obstacle
from wayfare.errors import ScenarioError
from wayfare.learning.models.base import Model
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9


@pytest.mark.parametrize(
    ("model", "batch", "reason"),
    [
        (Mlp((6, 3)), 16, "the network of random is not ResNet-9"),
        (Resnet9(normalisation="group", width=16), 16, "normalisation = 'group' is not 'batch'"),
        (Resnet9(width=8), 16, "width = 8 is not a multiple of 16"),
        (Resnet9(width=16), 24, "batch_size = 24 is not a multiple of 16"),
        (Resnet9(width=16, classes=200), 16, "classes = 200 is more than 128"),
        (Resnet9(width=16), 32, "they need a CUDA device and `precision=tf32` or `precision=bf16`"),
    ],
)
def test_an_obstacle_is_named(model: Model, batch: int, reason: str) -> None:
    local = job(model, batch=batch).training
    assert obstacle(local) == reason
    with pytest.raises(ScenarioError, match=r"engine = 'batched': does not work here: "):
        make_engine("batched", local)
