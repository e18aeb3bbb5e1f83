"""ResNet-9 of many devices in kernels over all devices: the values and gradients of PyTorch, device by device."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from tests.engine.rounded import ProductsInTf32
from torch import Tensor, nn
from torch.nn import functional

pytestmark = with_kernels

DEVICES, BATCH, CHANNELS, CLASSES = 2, 16, 16, 3


class Small(nn.Module):
    """Every kind of layer of ResNet-9, for images of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(
            nn.Conv2d(CHANNELS if number else 3, CHANNELS, 3, padding=1, bias=False) for number in range(6)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS, affine=False) for _ in range(6))
        self.linear = nn.Linear(CHANNELS, CLASSES)

    def _layer(self, number: int, signal: Tensor) -> Tensor:
        normal: Tensor = self.norms[number](self.kernels[number](signal))
        return normal.relu()

    def forward(self, signal: Tensor) -> Tensor:
        signal = functional.max_pool2d(self._layer(1, self._layer(0, signal)), 2)
        for first in (2, 4):
            signal = signal + self._layer(first + 1, self._layer(first, signal))
        logits: Tensor = self.linear(functional.max_pool2d(signal, 2).flatten(1))
        return logits


def vector_of(module: nn.Module) -> Tensor:
    statistics = [buffer.flatten() for buffer in module.buffers() if buffer.is_floating_point()]
    return torch.cat([*(entry.detach().flatten() for entry in module.parameters()), *statistics])


SIDES, POOLS, ADDS = (4, 4, 2, 2, 2, 2), (1, 2, 1, 1, 1, 1), (None, None, None, 1, None, 3)
RATES = torch.tensor([0.5, 0.25])
WAYS = pytest.mark.parametrize(("turned", "fused"), [(True, False), (False, True)])


@cache
def example() -> tuple[list[Small], Tensor, Tensor, Tensor]:
    """Networks, images, labels and offsets of all devices."""
    random = torch.Generator().manual_seed(0)
    modules = [Small().train() for _ in range(DEVICES)]
    for module in modules:
        for parameter in module.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=random) / 8)
    images = torch.randn(DEVICES, BATCH, 3, 4, 4, generator=random)
    labels = torch.randint(0, CLASSES, (DEVICES, BATCH), generator=random)
    return modules, images, labels, torch.randn(DEVICES, CLASSES, generator=random)


@cache
def stepped(devices: tuple[int, ...], *, turned: bool, fused: bool, rows: tuple[int, ...] | None = None) -> Tensor:
    """The networks of some devices after a step together, in the first rows or in others."""
    from wayfare.engine.batched.network import Layer, Network, Plan
    from wayfare.engine.batched.tiles import Format

    plan = Plan(
        layers=tuple(
            Layer(inputs=CHANNELS if number else 3, outputs=CHANNELS, side=side, pool=pool, adds=added)
            for number, (side, pool, added) in enumerate(zip(SIDES, POOLS, ADDS, strict=True))
        ),
        classes=CLASSES,
    )
    modules, *tensors = example()
    chosen = list(devices)
    images, labels, offsets, rates = (each[chosen].to(WHERE) for each in (*tensors, RATES))
    # One device more than takes part.
    kind = Format(dtype=torch.float32, turned=turned, rounded=False)
    network = Network(plan, kind, DEVICES + 1, BATCH, WHERE, rows=DEVICES + 2)
    block = torch.stack([vector_of(modules[device]) for device in devices]).to(WHERE)
    places = rows or tuple(range(len(devices)))
    for device, row in enumerate(places):
        network.load(block[device : device + 1], row)
    at = None if rows is None else torch.tensor(rows, dtype=torch.int32, device=WHERE)
    if fused:
        network.step(images, labels, offsets, rates, at)
    else:
        network.update(network.gradients(images, labels, offsets, rows=at), rates, at)
    for device, row in enumerate(places):
        network.read(block[device : device + 1], row)
    return block.cpu()


@WAYS
def test_a_step_of_all_devices_is_the_step_of_each(*, turned: bool, fused: bool) -> None:
    modules, images, labels, offsets = example()
    found_block = stepped((0, 1), turned=turned, fused=fused)
    for device, module in enumerate(modules):
        exact = deepcopy(module).double()
        before = vector_of(exact)
        # A GPU cuts the factors of these products.
        with ProductsInTf32(cut=True) if WHERE.type == "cuda" else nullcontext():
            loss = functional.cross_entropy(exact(images[device].double()) + offsets[device].double(), labels[device])
            found = torch.autograd.grad(loss, list(exact.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(exact.parameters(), found, strict=True):
                parameter.sub_(RATES[device] * gradient)
        expected = vector_of(exact)
        limit = 1e-5 if WHERE.type == "cpu" else 1e-2
        assert float((found_block[device] - expected).norm()) <= limit * float((expected - before).norm())


@WAYS
def test_a_device_alone_and_in_another_row_takes_the_same_step_bit_by_bit(*, turned: bool, fused: bool) -> None:
    together = stepped((0, 1), turned=turned, fused=fused)
    # Alone, the second device also has another place.
    assert torch.equal(together[1:], stepped((1,), turned=turned, fused=fused, rows=(3,)))


def test_rounded_numbers_have_eleven_significant_bits_and_nothing_else_changes() -> None:
    from wayfare.engine.batched.updates import update

    numbers = [1.0, 1 + 2**-11, 1 + 2**-12, -(1 + 3 * 2**-11), 3.4028235e38, float("inf"), float("-inf"), float("nan")]
    weights = torch.tensor(numbers + [0.0] * 248, device=WHERE).view(1, 16, 1, 16)
    turned = torch.zeros(1, 16, 1, 16, device=WHERE)
    update(weights, None, torch.zeros(1, device=WHERE), turned=turned, rounded=True)
    found = turned.transpose(1, 3).flatten()[: len(numbers)]
    near = [1.0, 1 + 2**-10, 1.0, -(1 + 2**-9), float("inf"), float("inf"), float("-inf"), float("nan")]
    torch.testing.assert_close(found.cpu(), torch.tensor(near), rtol=0, atol=0, equal_nan=True)


def test_an_update_also_writes_what_the_next_step_reads() -> None:
    from wayfare.engine.batched.convolutions import turned_weights
    from wayfare.engine.batched.updates import update

    random = torch.Generator().manual_seed(0)
    weights, directions = (torch.randn(2, 16, 9, 32, generator=random).to(WHERE) for _ in range(2))
    rates = torch.tensor([0.5, 0.25], device=WHERE)
    expected = weights - rates.view(2, 1, 1, 1) * directions
    copy = torch.zeros_like(weights, dtype=torch.float16)
    turned = torch.zeros(2, 32, 9, 16, device=WHERE)
    update(weights, directions, rates, copy=copy, turned=turned)
    torch.testing.assert_close(weights, expected)
    assert torch.equal(copy, weights.half())
    assert torch.equal(turned, turned_weights(weights))


def test_every_layer_of_resnet9_has_tiles_that_divide_it() -> None:
    from wayfare.engine.batched.network import Network, plan_of
    from wayfare.engine.batched.tiles import FORMATS
    from wayfare.learning.models.resnet9 import Resnet9

    for kind in FORMATS.values():
        for batch, width in ((16, 16), (32, 64), (48, 32)):
            network = Network(plan_of(Resnet9(width=width)), replace(kind), 1, batch, torch.device("meta"))
            for layer, here in zip(network.plan.layers, network.buffers, strict=True):
                row = layer.side * batch
                assert row % here.forward.positions == 0
                assert row % here.backward.positions == 0
                assert layer.outputs % here.forward.outputs == 0
                assert (batch if kind.turned and not here.weight.row_of_taps else row) % here.weight.positions == 0
                assert min(here.forward.positions, here.forward.inputs, here.weight.positions) >= 16
