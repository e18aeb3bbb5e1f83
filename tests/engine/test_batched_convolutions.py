"""Convolutions of many devices in one kernel: the values and gradients of `conv2d`, device by device."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor
from torch.nn import functional

pytestmark = with_kernels

DEVICES, HEIGHT, WIDTH, BATCH, INPUTS, OUTPUTS = 2, 3, 2, 16, 32, 16
SMALL = {"outputs": 16, "inputs": 16, "positions": 16, "warps": 4, "stages": 2}
# The interpreter cannot multiply bfloat16.
TYPES = [torch.float32, torch.bfloat16 if WHERE.type == "cuda" else torch.float16]


def whole_numbers(*shape: int, seed: int) -> Tensor:
    """Small whole numbers, whose products and sums every precision computes exactly."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float().to(WHERE)


def one_by_one(signal: Tensor, weights: Tensor) -> Tensor:
    """The definition, on signals without padding."""
    size = 3 if weights.shape[2] == 9 else 1
    each = []
    for mine, its in zip(signal, weights, strict=True):
        kernel = its.unflatten(1, (size, size)).permute(0, 3, 1, 2)
        each.append(functional.conv2d(mine.permute(2, 3, 0, 1), kernel, padding=size // 2).permute(2, 3, 0, 1))
    return torch.stack(each)


def example(taps: int) -> tuple[Tensor, Tensor, Tensor]:
    signal = whole_numbers(DEVICES, HEIGHT, WIDTH, BATCH, INPUTS, seed=1)
    gradient = whole_numbers(DEVICES, HEIGHT, WIDTH, BATCH, OUTPUTS, seed=2)
    return signal, gradient, whole_numbers(DEVICES, OUTPUTS, taps, INPUTS, seed=3)


@pytest.mark.parametrize("taps", [9, 1])
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_all_devices_convolve_with_their_own_weights(taps: int, type_: torch.dtype) -> None:
    from wayfare.engine.batched.convolutions import Tile, convolve, padded_signal, tiles_per_device

    signal, gradient, weights = example(taps)
    tile, padded = Tile(**SMALL), padded_signal(signal).to(type_)
    out = torch.zeros_like(padded_signal(gradient))
    moments = torch.zeros(DEVICES, tiles_per_device(padded, tile), 2, OUTPUTS, device=WHERE)
    convolve(padded, weights.to(type_), out, tile, moments)
    expected = one_by_one(signal, weights)
    assert torch.equal(out, padded_signal(expected))
    tiles = expected.reshape(DEVICES, -1, tile.positions, OUTPUTS)
    squares = tiles.var(dim=2, correction=0) * tile.positions
    torch.testing.assert_close(moments, torch.stack([tiles.mean(dim=2), squares], dim=2))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_weights_give_the_gradient_of_signals(*, turned: bool, added: bool) -> None:
    from wayfare.engine.batched.convolutions import Tile, convolve, padded_signal, turned_weights

    signal, gradient, weights = example(9)
    before = whole_numbers(*signal.shape, seed=4) if added else torch.zeros_like(signal)
    out = padded_signal(before)
    kernel = turned_weights(weights) if turned else weights
    convolve(padded_signal(gradient), kernel, out, Tile(**SMALL), backward=not turned, added=added)
    signal.requires_grad_()
    (expected,) = torch.autograd.grad(one_by_one(signal, weights), signal, gradient)
    assert torch.equal(out, padded_signal(before + expected))


@pytest.mark.parametrize(("taps", "parts", "row"), [(9, 1, True), (9, 2, False), (1, 2, False)])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_weights_are_those_of_the_definition(taps: int, parts: int, *, row: bool, turned: bool) -> None:
    from wayfare.engine.batched.convolutions import padded_signal, turned_signal
    from wayfare.engine.batched.weight_gradients import WeightTile, weight_gradient

    signal, gradient, weights = example(taps)
    mine, its = padded_signal(signal), padded_signal(gradient)
    if turned:
        mine, its = turned_signal(mine), turned_signal(its)
    tile = WeightTile(**SMALL, parts=parts, row_of_taps=row)
    found = weight_gradient(its, mine, taps, tile, turned=turned)
    weights.requires_grad_()
    (expected,) = torch.autograd.grad(one_by_one(signal, weights), weights, gradient)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("row", "turned"), [(True, True), (False, False)])
def test_a_step_along_the_gradient_also_writes_what_the_next_one_reads(*, row: bool, turned: bool) -> None:
    from wayfare.engine.batched.convolutions import padded_signal, turned_signal, turned_weights
    from wayfare.engine.batched.weight_gradients import Update, WeightTile, weight_gradient

    signal, gradient, weights = example(9)
    mine, its = padded_signal(signal), padded_signal(gradient)
    if turned:
        mine, its = turned_signal(mine), turned_signal(its)
    tile = WeightTile(**SMALL, parts=1, row_of_taps=row)
    rates = torch.tensor([0.5, 0.25], device=WHERE)
    expected = weights - rates.view(-1, 1, 1, 1) * weight_gradient(its, mine, 9, tile, turned=turned)
    update = Update(
        weights=weights,
        rates=rates,
        rows=None,
        copy=torch.zeros_like(weights, dtype=torch.float16),
        turned=torch.zeros_like(turned_weights(weights)),
        rounded=False,
    )
    weight_gradient(its, mine, 9, tile, turned=turned, update=update)
    assert torch.equal(weights, expected)
    assert update.copy is not None
    assert update.turned is not None
    assert torch.equal(update.copy, expected.half())
    assert torch.equal(update.turned, turned_weights(expected))


def test_tiles_that_do_not_divide_the_work_are_rejected() -> None:
    from wayfare.engine.batched.convolutions import Tile, convolve, padded_signal
    from wayfare.engine.batched.weight_gradients import WeightTile, weight_gradient

    signal, gradient, weights = example(9)
    mine, its = padded_signal(signal), padded_signal(gradient)
    with pytest.raises(ValueError, match=r"positions=64.* does not divide"):
        convolve(mine, weights, its, Tile(**{**SMALL, "positions": 64}))
    with pytest.raises(ValueError, match=r"inputs=64.* does not divide"):
        weight_gradient(its, mine, 9, WeightTile(**{**SMALL, "inputs": 64}, parts=1))
