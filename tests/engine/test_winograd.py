"""Convolutions with fewer multiplications are the same convolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.jobs import job, run, starts
from torch import Tensor, nn

from wayfare.engine import Burst, winograd
from wayfare.learning.models.resnet9 import Resnet9

# Large enough to be trained one device at a time, with layers of both kinds.
MODEL = Resnet9(width=32)
BURSTS = [Burst(0, 1, 2), Burst(1, 3, 1), Burst(2, 1, 0)]


def values_and_gradients(signal: Tensor, kernel: Tensor, out: Tensor) -> list[Tensor]:
    slope = torch.from_numpy(np.random.default_rng(1).standard_normal(out.shape))
    return [out, *torch.autograd.grad(out, (signal, kernel), slope)]


@pytest.mark.parametrize("chunk_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize(("batch", "inputs", "outputs", "height", "width"), [(5, 3, 4, 6, 8), (2, 7, 1, 2, 2)])
def test_values_and_gradients_are_those_of_the_convolution(
    batch: int, inputs: int, outputs: int, height: int, width: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_CHUNK_BYTES", chunk_bytes)
    rng, layer = np.random.default_rng(0), winograd.Winograd()
    # Twice: the memory of the first pass serves the second.
    for _ in range(2):
        signal = torch.from_numpy(rng.standard_normal((batch, inputs, height, width))).requires_grad_()
        kernel = torch.from_numpy(rng.standard_normal((outputs, inputs, 3, 3))).requires_grad_()
        expected = values_and_gradients(signal, kernel, nn.functional.conv2d(signal, kernel, padding=1))
        found = values_and_gradients(signal, kernel, layer(signal, kernel))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    # Of a batch of images as they come in, no gradient is asked for.
    out = layer(signal.detach(), kernel)
    assert torch.autograd.grad(out.sum(), kernel)[0].shape == kernel.shape


def test_only_what_it_suits_is_computed_so() -> None:
    assert winograd.pays(nn.Conv2d(64, 8, 3, padding=1, bias=False))
    for layer in (
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Conv2d(64, 64, 5, padding=2, bias=False),
        nn.Conv2d(64, 64, 3, padding=1, stride=2, bias=False),
    ):
        assert not winograd.pays(layer)
    assert not winograd.has_tiles(torch.zeros(1, 64, 7, 8))


def test_a_large_network_trains_as_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    whole = winograd.Winograd.__call__

    def counted(layer: winograd.Winograd, signal: Tensor, kernel: Tensor) -> Tensor:
        used.append(kernel.shape)
        return whole(layer, signal, kernel)

    monkeypatch.setattr(winograd.Winograd, "__call__", counted)
    local = job(MODEL, devices=3, batch=4)
    initial = starts(local, torch.float64)
    expected, found = (run(name, local, initial, BURSTS) for name in ("reference", "stacked"))
    # Six of the eight convolutions, in three steps.
    assert len(used) == 3 * 6
    for device in (0, 1):
        update = (initial - expected)[device]
        assert float((found - expected)[device].norm()) <= 1e-10 * float(update.norm())
    assert torch.equal(found[2], initial[2])


def test_single_precision_is_as_good_as_that_of_the_plain_loop_and_repeats() -> None:
    local = job(MODEL, devices=2, batch=8)
    bursts = [Burst(device, 1, 1) for device in range(2)]
    initial = starts(local, torch.float32)
    truth = run("reference", local, initial.double(), bursts) - initial.double()

    def errors(models: Tensor) -> Tensor:
        return ((models - initial).double() - truth).norm(dim=1) / truth.norm(dim=1)

    found, again, plain = (run(name, local, initial, bursts) for name in ("stacked", "stacked", "reference"))
    assert torch.equal(found, again)
    assert float(errors(found).max()) <= 5e-3
    assert float(errors(found).mean()) <= 2 * float(errors(plain).mean()) + 1e-7
