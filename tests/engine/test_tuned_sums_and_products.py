"""Kernels of trained backbones for sizes that no tile divides: the sums and products of PyTorch in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor
from torch.nn import functional

from wayfare.engine.tuned.layers import Form, convolution

pytestmark = with_kernels

# Rounding of bf16 results, and of the factors of TF32.
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 6e-3}
# The interpreter cannot multiply matrices of bf16.
TYPES = list(LIMITS) if WHERE.type == "cuda" else [torch.float32]


@pytest.fixture
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(device=WHERE, dtype=dtype)


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "height", "width"),
    [
        (3, 1, (1, 1, 1, 1), 5, 5),
        (3, 2, (0, 1, 0, 1), 8, 6),
        (3, 1, (2, 2, 2, 2), 4, 7),
        (5, 1, (2, 2, 2, 2), 7, 12),
        (5, 2, (1, 2, 1, 2), 10, 10),
        (5, 2, (2, 2, 2, 2), 3, 13),
        (5, 1, (0, 0, 0, 0), 6, 5),
    ],
)
def test_gradients_of_depthwise_kernels_are_those_of_pytorch(
    kernel: int,
    stride: int,
    padding: tuple[int, int, int, int],
    height: int,
    width: int,
    devices: int,
    dtype: torch.dtype,
) -> None:
    from wayfare.engine.tuned.depthwise import Window
    from wayfare.engine.tuned.depthwise_sums import depthwise_weights

    # Few programs, of which each adds up several strips.
    batch, channels, programs = 2, 40, 4
    left, right, top, bottom = padding
    window = Window(
        kernel=kernel,
        stride=stride,
        top=top,
        left=left,
        height=height,
        width=width,
        out_height=(height + top + bottom - kernel) // stride + 1,
        out_width=(width + left + right - kernel) // stride + 1,
    )
    signal = random(devices * batch, height, width, channels, dtype=dtype)
    error = random(devices * batch, window.out_height, window.out_width, channels, dtype=dtype, seed=1)
    taps, shifts = depthwise_weights(error, signal, devices, window, programs)
    for device in range(devices):
        own = slice(device * batch, (device + 1) * batch)
        images, errors = (each[own].double().permute(0, 3, 1, 2) for each in (signal, error))
        weight = torch.zeros(channels, 1, kernel, kernel, dtype=torch.float64, device=WHERE, requires_grad=True)
        out = functional.conv2d(functional.pad(images, padding), weight, None, stride, groups=channels)
        (expected,) = torch.autograd.grad(out, weight, errors)
        assert off(taps[device].T, expected.flatten(1)) <= 1e-6
        assert off(shifts[device], errors.sum(dim=(0, 2, 3))) <= 1e-6
        alone = depthwise_weights(error[own], signal[own], 1, window, programs)
        assert torch.equal(alone[0][0], taps[device])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("count", "inputs", "outputs"), [(150, 24, 72), (37, 13, 70), (16, 80, 130)])
def test_products_with_bias_and_relu_are_those_of_pytorch(
    count: int, inputs: int, outputs: int, devices: int, dtype: torch.dtype, *, shared: bool
) -> None:
    from wayfare.engine.tuned.depthwise import Gate
    from wayfare.engine.tuned.products import activated_product, product_inputs

    rows, owners = random(devices, count, inputs, dtype=dtype), 1 if shared else devices
    weights, bias = random(owners, outputs, inputs, dtype=dtype, seed=1), random(owners, outputs, seed=2)
    plain = rows.double() @ weights.double().transpose(1, 2)
    assert off(activated_product(rows, weights, None, 6.0), plain.clamp(0, 6)) <= LIMITS[dtype]
    shifted = plain + bias.double()[:, None]
    assert off(activated_product(rows, weights, bias, -1.0), shifted) <= LIMITS[dtype]
    out = activated_product(rows, weights, bias, 6.0)
    assert off(out, shifted.clamp(0, 6)) <= LIMITS[dtype]
    error = random(devices, count, inputs, dtype=dtype, seed=3)
    turned = weights.transpose(1, 2).contiguous()
    found = product_inputs(error, turned, Gate(out, 6.0))
    assert off(found, (error.double() @ turned.double()).where((out > 0) & (out < 6), 0)) <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 24), (24, 150), (3, 7)])
def test_gradients_of_folded_weights_are_those_of_pytorch(
    outputs: int, inputs: int, rows: int, dtype: torch.dtype
) -> None:
    from wayfare.engine.tuned.folding import gradients_of_folded

    weight, factor = random(2, outputs, inputs), random(rows, outputs, seed=1)
    gradient = random(2, outputs, inputs, dtype=dtype, seed=2)
    of_weight, of_factor = gradients_of_folded(gradient, weight, factor)
    assert off(of_weight, gradient.double() * factor.double()[:, :, None]) <= 1e-6
    assert off(of_factor, (gradient.double() * weight.double()).sum(dim=2)) <= 1e-6


@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize("kernels", [False, True])
def test_a_product_takes_weights_and_their_factors_apart(*, kernels: bool) -> None:
    form = Form(kernel=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, limit=6.0)
    signal, weight = random(4, 24, 5, 5), random(2, 40, 24, 1, 1, seed=1).requires_grad_()
    bias, factor = (random(2, 40, seed=seed).requires_grad_() for seed in (2, 3))
    folded = (weight * factor.view(2, 40, 1, 1, 1)).double()
    expected = convolution(signal.double(), folded, bias.double(), form, 2, kernels=False)
    found = convolution(signal, weight, bias, form, 2, kernels=kernels, factor=factor)
    assert off(found.detach(), expected.detach()) <= LIMITS[torch.float32]
    error, wanted = random(*expected.shape, seed=4), (weight, bias, factor)
    ours, theirs = torch.autograd.grad(found, wanted, error), torch.autograd.grad(expected, wanted, error.double())
    for one, two in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert off(one, two) <= 10 * LIMITS[torch.float32]


@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize(
    ("inputs", "outputs", "product", "gated"),
    [
        (16, 96, True, True),
        (112, 672, True, True),
        (192, 1152, False, False),
        (672, 112, False, True),
        (240, 40, True, True),
        (1152, 192, False, False),
    ],
)
def test_tf32_uses_the_product_that_was_measured_to_be_faster(
    inputs: int, outputs: int, *, product: bool, gated: bool
) -> None:
    from wayfare.engine.tuned.products import pays

    rows = torch.zeros(1, 1, inputs)
    assert pays(rows, outputs) == product
    assert pays(rows, outputs, gated=True) == gated
    assert pays(rows.bfloat16(), outputs)
    torch.set_float32_matmul_precision("highest")
    assert not pays(rows, outputs)


@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("trains_weights", [False, True])
def test_an_inverted_bottleneck_has_the_gradients_of_pytorch(dtype: torch.dtype, *, trains_weights: bool) -> None:
    devices, batch, narrow, wide = 2, 2, 8, 24
    product = Form(kernel=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1)
    filtering = replace(product, kernel=(3, 3), padding=(1, 1, 1, 1), groups=wide, limit=6.0, gate=6.0, gated=True)
    forms = replace(product, limit=6.0, gated=True), filtering, replace(product, gate=6.0)
    shapes = (wide, narrow, 1, 1), (wide, 1, 3, 3), (narrow, wide, 1, 1)
    weights = [random(devices, *shape) for shape in shapes]
    biases = [random(devices, shape[0], seed=1) for shape in shapes]
    signal = random(devices * batch, narrow, 6, 7, dtype=dtype)
    # Shared values, so that ReLUs gate alike.
    parameters = [each.to(dtype).float().requires_grad_() for each in (*weights, *biases)]
    mine = signal.clone().requires_grad_()
    wanted = [mine, *parameters] if trains_weights else [mine, *parameters[3:]]
    between = mine
    for form, weight, bias in zip(forms, parameters[:3], parameters[3:], strict=True):
        weight.requires_grad_(trains_weights)
        between = convolution(between, weight, bias, form, devices, kernels=True)
    error = random(*between.shape, dtype=dtype, seed=2)
    found = torch.autograd.grad(between, wanted, error)
    truth = [each.detach().double().requires_grad_() for each in (mine, *parameters)]
    results = []
    for device, images in enumerate(truth[0].chunk(devices)):
        for form, weight, bias in zip(forms, truth[1:4], truth[4:], strict=True):
            images = functional.conv2d(images, weight[device], bias[device], 1, form.padding[0], 1, form.groups)
            images = images.clamp(0, 6) if form.limit >= 0 else images
        results.append(images)
    expected = torch.autograd.grad(torch.cat(results), truth, error.double())
    expected = expected if trains_weights else (expected[0], *expected[4:])
    for one, two in zip(found, expected, strict=True):
        assert off(one, two) <= 10 * LIMITS[dtype]
