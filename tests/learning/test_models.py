"""Models: the promised numbers of parameters, and a flat vector that is the network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from wayfare.learning.models.base import Model, entries, load_vector, read_vector
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.streams import Stream, generator

MODELS: list[Model] = [
    Mlp((12, 8, 5)),
    SmallCnn(),
    SmallCnn(image=(1, 14, 14)),
    SmallCnn(image=(3, 32, 32), hidden=20, classes=7),
    Resnet9(width=4),
    Resnet9(normalisation="group", width=4),
    Resnet9(),
]


def test_resnet9_has_the_parameters_of_the_paper() -> None:
    model = Resnet9()
    convolutions = [layer for layer in model.module().modules() if isinstance(layer, nn.Conv2d)]
    assert [(layer.in_channels, layer.out_channels) for layer in convolutions] == model.convolutions
    assert sum(layer.weight.numel() for layer in convolutions) == 6_563_520
    assert model.parameters == Resnet9(normalisation="group").parameters == 6_568_650
    assert model.statistics == 2 * (64 + 3 * 128 + 256 + 3 * 512)
    assert Resnet9(normalisation="group").statistics == 0


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_vector_of_a_model_is_its_parameters_and_then_its_statistics(model: Model) -> None:
    module = model.module()
    assert sum(entry.numel() for entry in module.parameters()) == model.parameters
    assert sum(entry.numel() for entry in entries(module)) == model.parameters + model.statistics
    vector = model.initial(generator(1, Stream.INITIAL_MODEL, 0))
    assert vector.dtype == torch.float32
    load_vector(module, vector)
    assert torch.equal(read_vector(module), vector)
    assert torch.equal(torch.cat([entry.reshape(-1) for entry in module.parameters()]), vector[: model.parameters])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_models_begin_within_the_bounds_of_pytorch(model: Model) -> None:
    module = model.module()
    load_vector(module, model.initial(generator(2, Stream.INITIAL_MODEL, 0)))
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = layer.weight[0].numel() ** -0.5
            assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        elif isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            assert not layer.running_mean.any()
            assert bool((layer.running_var == 1).all())


@pytest.mark.parametrize("model", MODELS[:-1], ids=str)
def test_models_take_their_images_and_give_logits(model: Model) -> None:
    shape = (12,) if isinstance(model, Mlp) else model.image if isinstance(model, SmallCnn) else (3, 32, 32)
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32))
    assert model.module()(inputs).shape == (2, 5 if isinstance(model, Mlp) else model.classes)  # type: ignore[attr-defined]
