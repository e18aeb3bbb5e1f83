"""Products and convolutions of stacks are those of every device, and gradients lie as the weights do."""

from __future__ import annotations

import pytest
import torch
from tests.engine.jobs import lane_job, lane_starts
from torch import Tensor
from torch.nn import functional

from wayfare.engine import Burst
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.lanegcn.products import convolution, product, turned
from wayfare.engine.lanegcn.scenes import Packing
from wayfare.learning.models.lanegcn import LaneGcn

DEVICES, ROWS, INPUTS, OUTPUTS = 3, 5, 4, 6


def drawn(*shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=rng, requires_grad=True)


def test_a_product_is_the_linear_layer_of_every_device_with_the_right_derivative() -> None:
    rows, weight, bias = drawn(DEVICES, ROWS, INPUTS), drawn(DEVICES, INPUTS, OUTPUTS), drawn(DEVICES, OUTPUTS)
    onto = drawn(DEVICES, ROWS, OUTPUTS)
    expected = torch.stack([functional.linear(*one) for one in zip(rows, turned(weight), strict=True)])
    torch.testing.assert_close(product(rows, weight), expected)
    torch.testing.assert_close(product(rows, weight, bias), expected + bias[:, None])
    torch.testing.assert_close(product(rows, weight, onto=onto * 1), expected + onto)
    assert torch.autograd.gradcheck(product, (rows, weight, bias))
    assert torch.autograd.gradcheck(lambda left, right, onto: product(left, right, onto=onto * 1), (rows, weight, onto))


STEPS = [(3, 1, 5), (3, 1, 1), (3, 2, 6), (3, 2, 5), (1, 1, 4), (1, 2, 6)]


@pytest.mark.parametrize(("times", "stride", "time"), STEPS)
def test_a_convolution_is_that_of_every_device_with_the_right_derivative(times: int, stride: int, time: int) -> None:
    tracks, kernel = drawn(DEVICES, ROWS, time, INPUTS), drawn(DEVICES, times, INPUTS, OUTPUTS)
    expected = [
        functional.conv1d(track.transpose(1, 2), one, stride=stride, padding=times // 2).transpose(1, 2)
        for track, one in zip(tracks, turned(kernel), strict=True)
    ]
    torch.testing.assert_close(convolution(tracks, kernel, stride), torch.stack(expected))
    assert torch.autograd.gradcheck(lambda over, with_: convolution(over, with_, stride), (tracks, kernel))


@pytest.mark.parametrize("pair_rows", [0, 16])
def test_all_weights_are_updated_in_one_call(pair_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch updates a list of tensors at once on a GPU only if every gradient lies as its weight does."""
    updates, plain = [], torch._foreach_add_

    def counted(weights: list[Tensor], gradients: list[Tensor], **settings: float) -> None:
        updates.append([weight.stride() == one.stride() for weight, one in zip(weights, gradients, strict=True)])
        plain(weights, gradients, **settings)

    monkeypatch.setattr(torch, "_foreach_add_", counted)
    local = lane_job(LaneGcn(width=16, modes=3), schedule="linear")
    models = list(lane_starts(local, torch.float32).unbind())
    packing = Packing(width=5, tile=8, pair_rows=pair_rows)
    StackedLaneGcn(local.training, packing).run(models, [Burst(device, 1, 1) for device in range(5)])
    assert len(updates) == 1
    assert len(updates[0]) == 264
    assert all(updates[0])
