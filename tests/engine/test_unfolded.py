"""Convolutions as matrix products are the same convolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wayfare.engine.unfolded import UnfoldedConv2d, unfold_convolutions
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.streams import Stream, generator


def gradients(module: nn.Module, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    inputs = inputs.clone().requires_grad_()
    out = module(inputs)
    return out, list(torch.autograd.grad(out.square().sum(), [inputs, *module.parameters()]))


@pytest.mark.parametrize("pixels", [(32 * 32, 0), (0, 32 * 32), (8 * 8, 16 * 16)], ids=str)
@pytest.mark.parametrize("model", [Resnet9(width=4), SmallCnn(image=(3, 32, 32))], ids=str)
def test_networks_of_products_give_the_same_values_and_gradients(
    model: Resnet9 | SmallCnn, pixels: tuple[int, int]
) -> None:
    plain, unfolded = model.module().double(), model.module()
    unfold_convolutions(unfolded, *pixels)
    unfolded = unfolded.double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert sum(isinstance(layer, UnfoldedConv2d) for layer in unfolded.modules()) >= 2
    vector = model.initial(generator(0, Stream.INITIAL_MODEL, 0)).double()
    for module in (plain, unfolded):
        load_vector(module, vector)
    assert torch.equal(read_vector(unfolded), vector)
    inputs = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 3, 32, 32)))
    (expected, slopes), (found, others) = gradients(plain, inputs), gradients(unfolded, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for slope, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(other, slope, rtol=1e-9, atol=1e-9)


def test_only_small_images_are_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(UnfoldedConv2d, "_conv_forward", lambda *_: used.append(1) or torch.zeros(1))
    layers = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(1, 2, 5), nn.Conv2d(1, 2, 3, padding=1, stride=2))
    unfold_convolutions(layers, 16)
    assert [isinstance(layer, UnfoldedConv2d) for layer in layers] == [True, False, False]
    layers[0](torch.zeros(1, 1, 4, 4))
    assert not used
    layers[0](torch.zeros(1, 1, 5, 4))
    assert used
