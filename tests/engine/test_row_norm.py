"""Norms whose weights differ from device to device: those of `nn.LayerNorm`, and the GPU's kernels against them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.engine.jobs import lane_job, lane_starts
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor
from torch.nn import functional

from wayfare.engine import Burst
from wayfare.engine.lanegcn import forecast
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.lanegcn.fused import fused_kernels
from wayfare.engine.lanegcn.row_norm import normalised
from wayfare.learning.models.lanegcn import LaneGcn

# Ragged numbers of rows, widths that are no powers of two, more rows than a program takes, tracks over time.
SHAPES = [(1, 1, 16), (3, 5, 128), (2, 37, 12), (2, 70, 128), (3, 4, 20, 12), (2, 17, 5, 24), (2, 3, 20, 128)]
EXTRAS = [(added, rectified) for added in (False, True) for rectified in (False, True)]

Norm = Callable[..., Tensor]


def fused(rows: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None, *, rectified: bool) -> Tensor:
    """The kernels, on a CPU or a GPU."""
    kernels = fused_kernels(WHERE)
    assert kernels is not None
    out: Tensor = kernels.FusedNorm.apply(rows, weight, bias, added, rectified, 1e-5)
    return out


def on_processor(rows: Tensor, *others: Tensor | None, rectified: bool) -> Tensor:
    """The CPU implementation."""
    return normalised(rows.cpu(), *[None if other is None else other.cpu() for other in others], rectified=rectified)


def drawn(shape: tuple[int, ...], *, added: bool, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    """Rows, weights, biases and what is added."""
    rng = torch.Generator().manual_seed(sum(shape))
    rows, more = (torch.randn(shape, generator=rng, dtype=dtype) * 2 + 1 for _ in range(2))
    weight, bias = (torch.randn(shape[0], shape[-1], generator=rng, dtype=dtype) for _ in range(2))
    return [rows, weight, bias, more if added else None]


def with_gradients(norm: Norm, given: list[Tensor | None], *, rectified: bool, where: torch.device) -> list[Tensor]:
    """The output, and the derivatives of its sum by every input."""
    leaves = [None if one is None else one.to(where).requires_grad_() for one in given]
    out = norm(*leaves, rectified=rectified)
    slopes = torch.linspace(-1, 2, out.numel()).view(out.shape).to(out)
    present = [leaf for leaf in leaves if leaf is not None]
    return [one.detach().cpu() for one in (out, *torch.autograd.grad(out, present, slopes))]


@pytest.mark.parametrize(("added", "rectified"), EXTRAS)
@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 4, 5, 6)])
def test_a_norm_is_the_layer_norm_of_every_device_with_the_right_derivative(
    shape: tuple[int, ...], added: bool, rectified: bool
) -> None:
    given = drawn(shape, added=added, dtype=torch.float64)

    def plain(rows: Tensor, weight: Tensor, bias: Tensor, more: Tensor | None = None, *, rectified: bool) -> Tensor:
        broad = (len(rows), *[1] * (rows.dim() - 2), -1)
        out = functional.layer_norm(rows, rows.shape[2:]) * weight.view(broad) + bias.view(broad)
        out = out if more is None else out + more
        return out.relu() if rectified else out

    here = torch.device("cpu")
    found = with_gradients(normalised, given, rectified=rectified, where=here)
    for one, other in zip(found, with_gradients(plain, given, rectified=rectified, where=here), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@with_kernels
@pytest.mark.parametrize(("added", "rectified"), EXTRAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_give_the_norms_of_the_processor_and_the_same_bits_again(
    shape: tuple[int, ...], added: bool, rectified: bool
) -> None:
    given = drawn(shape, added=added)
    expected = with_gradients(on_processor, given, rectified=rectified, where=WHERE)
    found, again = (with_gradients(fused, given, rectified=rectified, where=WHERE) for _ in range(2))
    for one, other, same in zip(found, expected, again, strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@with_kernels
@pytest.mark.parametrize(("added", "rectified"), EXTRAS)
def test_kernels_take_rows_in_bfloat16_and_sum_in_float32(added: bool, rectified: bool) -> None:
    rows, weight, bias, more = drawn((3, 45, 24), added=added)
    assert rows is not None
    short = [rows.bfloat16(), weight, bias, None if more is None else more.bfloat16()]
    long = [short[0].float(), weight, bias, None if short[3] is None else short[3].float()]
    found = with_gradients(fused, short, rectified=rectified, where=WHERE)
    expected = with_gradients(on_processor, long, rectified=rectified, where=WHERE)
    assert [one.dtype for one in found[:4]] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    for one, other in zip(found, expected, strict=True):
        # The gradient that comes in is rounded too, and sums of rows add those errors up.
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.05)


@with_kernels
def test_rows_and_gradients_need_not_be_dense() -> None:
    rows, weight, _, _ = drawn((2, 6, 32), added=False)
    assert rows is not None
    assert weight is not None
    wide = [rows[:, :, ::2], weight[:, ::2], weight[:, 1::2], None]
    found = with_gradients(fused, wide, rectified=True, where=WHERE)
    for one, other in zip(found, with_gradients(on_processor, wide, rectified=True, where=WHERE), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@with_kernels
def test_a_step_with_the_kernels_is_a_step_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    local = lane_job(LaneGcn(width=16, modes=3), devices=2, batch=2)
    initial = lane_starts(local, torch.float32)
    bursts, calls = [Burst(device, 1, 1) for device in range(2)], []

    def counted(rows: Tensor, *others: Tensor, rectified: bool) -> Tensor:
        calls.append(rows.shape)
        return fused(rows.to(WHERE), *[None if one is None else one.to(WHERE) for one in others], rectified=rectified)

    def step() -> Tensor:
        models = initial.clone()
        StackedLaneGcn(local.training).run(list(models.unbind()), bursts)
        return models - initial

    expected = step()
    monkeypatch.setattr(forecast, "normalised", lambda *given, **extra: counted(*given, **extra).cpu())
    assert float((step() - expected).norm()) <= 1e-4 * float(expected.norm())
    assert len(calls) == 71
