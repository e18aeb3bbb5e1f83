"""Layers of all devices with channels last: the values and gradients of PyTorch, on every device by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor
from torch.nn import functional

from wayfare.engine import Compute
from wayfare.engine.tuned.layers import Form, convolution

pytestmark = with_kernels

DEVICES, BATCH = (20, 8) if WHERE.type == "cuda" else (2, 3)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with Compute.named(WHERE.type).numerics():
        yield


def depthwise_form(kernel: int, stride: int, padding: tuple[int, int, int, int], limit: float, channels: int) -> Form:
    return Form(
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=padding,
        dilation=(1, 1),
        groups=channels,
        limit=limit,
    )


PRODUCT = Form(kernel=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, limit=6.0)
DENSE = Form(kernel=(3, 3), stride=(2, 2), padding=(0, 1, 0, 1), dilation=(1, 1), groups=1, limit=math.inf)


def example(channels: int, outputs: int, form: Form, *, shared: bool, side: int = 6) -> list[Tensor]:
    """A signal, weights and biases, in double precision."""
    random = torch.Generator().manual_seed(channels)
    rows, inputs = 1 if shared else DEVICES, channels // form.groups
    shapes = (DEVICES * BATCH, channels, side, side + 1), (rows, outputs, inputs, *form.kernel), (rows, outputs)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(WHERE) for shape in shapes]


def by_kernels(form: Form, signal: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return convolution(signal, weight, bias, form, DEVICES, kernels=True)


def by_pytorch(form: Form, signal: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The convolution of every device by itself."""

    def of_devices() -> Iterator[Tensor]:
        for device, images in enumerate(functional.pad(signal, form.padding).chunk(DEVICES)):
            row = 0 if len(weight) == 1 else device
            yield functional.conv2d(images, weight[row], bias[row], form.stride, 0, form.dilation, form.groups)

    found = torch.cat(list(of_devices()))
    return found if form.limit < 0 else found.clamp(0, form.limit)


@pytest.mark.parametrize(
    ("form", "channels", "outputs", "shared"),
    [
        (depthwise_form(3, 1, (1, 1, 1, 1), 6.0, 40), 40, 40, False),
        (depthwise_form(3, 1, (1, 1, 1, 1), 6.0, 8), 8, 8, True),
        (depthwise_form(3, 2, (0, 1, 0, 1), -1.0, 8), 8, 8, False),
        (depthwise_form(5, 2, (1, 2, 2, 2), 6.0, 8), 8, 8, False),
        (depthwise_form(5, 2, (1, 2, 2, 2), 6.0, 8), 8, 8, True),
        (depthwise_form(5, 1, (2, 2, 2, 2), math.inf, 8), 8, 8, False),
        (PRODUCT, 24, 40, False),
        (PRODUCT, 24, 40, True),
        (DENSE, 3, 8, False),
        (DENSE, 3, 8, True),
    ],
)
def test_layers_of_all_devices_give_values_and_gradients_of_pytorch(
    form: Form, channels: int, outputs: int, *, shared: bool
) -> None:
    truth = [each.requires_grad_() for each in example(channels, outputs, form, shared=shared)]
    expected = by_pytorch(form, *truth)
    error = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(WHERE)
    gradients = torch.autograd.grad(expected, truth, error)
    mine = [each.detach().float().requires_grad_() for each in truth]
    wanted = mine[:1] if shared else mine
    for each in mine[len(wanted) :]:
        each.requires_grad_(False)
    found = by_kernels(form, *mine)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for one, two in zip(torch.autograd.grad(found, wanted, error.float()), gradients, strict=False):
        assert float((one - two).norm()) <= 1e-5 * float(two.norm())


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_first_convolution_is_a_product_of_neighbourhoods(dilation: int) -> None:
    form = replace(DENSE, dilation=(dilation, dilation), limit=6.0)
    # 27 taps per channel of the result, which is no multiple of what matrix units read at once.
    signal, *truth = example(3, 8, form, shared=False, side=7)
    expected = by_pytorch(form, signal, *(each.requires_grad_() for each in truth))
    error = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(WHERE)
    mine = [each.detach().float().requires_grad_() for each in truth]
    found = by_kernels(form, signal.float(), *mine)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(expected, truth, error)
    for one, two in zip(torch.autograd.grad(found, mine, error.float()), gradients, strict=True):
        assert float((one - two).norm()) <= 1e-5 * float(two.norm())


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_layer_passes_gradients_through_the_relu_before_it(stride: int) -> None:
    gate = replace(PRODUCT, gated=True)
    form = replace(depthwise_form(3, stride, (1, 1, 1, 1), -1.0, 8), gate=6.0)
    mine = [each.float().requires_grad_() for each in example(8, 8, gate, shared=False)]
    kernels = [each.float() for each in example(8, 8, form, shared=False)[1:]]
    between = by_kernels(gate, *mine)
    assert 0.2 < float(((between > 0) & (between < 6)).double().mean()) < 0.8
    found = by_kernels(form, between, *kernels)
    truth = [each.detach().double().requires_grad_() for each in mine]
    expected = by_pytorch(form, by_pytorch(PRODUCT, *truth), *(each.double() for each in kernels))
    error = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(WHERE)
    gradients = torch.autograd.grad(expected, truth, error)
    for one, two in zip(torch.autograd.grad(found, mine, error.float()), gradients, strict=True):
        assert float((one - two).norm()) <= 1e-5 * float(two.norm())
