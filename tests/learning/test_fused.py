"""Layers in one kernel compute what they compute one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from wayfare.engine import Compute
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.learning.models.fused import _Fused, fuse
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.images import ImageClassification


def some_vector(model: Resnet9) -> torch.Tensor:
    """With statistics that are not those of the start."""
    vector = model.initial(np.random.default_rng(3))
    return torch.cat([vector[: model.parameters], torch.linspace(0.5, 1.5, model.statistics)])


@pytest.mark.parametrize(("normalisation", "fused"), [("batch", 8), ("group", 0)])
def test_fused_layers_have_the_same_vector_and_the_same_results_on_a_cpu(normalisation: str, fused: int) -> None:
    model = replace(Resnet9(width=4), normalisation=normalisation)  # type: ignore[arg-type]
    plain, changed = model.module().eval(), fuse(model.module().eval())
    assert sum(isinstance(layer, _Fused) for layer in changed.modules()) == fused
    vector, images = some_vector(model), torch.randn(2, 3, 32, 32)
    for module in (plain, changed):
        load_vector(module, vector)
    assert torch.equal(read_vector(changed), vector)
    assert torch.equal(plain(images), changed(images))


def test_other_layers_stay() -> None:
    others = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3, bias=False), nn.ReLU())
    assert not any(isinstance(layer, _Fused) for layer in fuse(others).modules())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_gpu_evaluates_as_a_cpu_and_repeats(precision: str) -> None:
    images, model = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8), Resnet9(width=64)
    task = ImageClassification(
        name="noise",
        model=model,
        classes=10,
        class_names=tuple("0123456789"),
        train_images=images,
        train_labels=torch.arange(64) % 10,
        test_images=images,
        test_labels=torch.arange(64) % 10,
        mean=torch.full((3, 1, 1), 128.0),
        deviation=torch.full((3, 1, 1), 64.0),
    )
    expected = Evaluator(task)(some_vector(model))
    compute = Compute.named("cuda", precision)  # type: ignore[arg-type]
    with compute.numerics():
        evaluate = Evaluator(task.to(compute.device))
        found, again = (evaluate(some_vector(model).to(compute.device)) for _ in range(2))
    assert found == again
    rtol = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}[precision]
    assert found.loss == pytest.approx(expected.loss, rel=rtol)
