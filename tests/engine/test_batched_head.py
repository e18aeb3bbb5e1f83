"""The linear layer and sums of all devices: the values of PyTorch, in an order that other devices cannot change."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor
from torch.nn import functional

pytestmark = with_kernels

# More devices and features on a GPU, where an order could depend on their number.
DEVICES, FEATURES = (20, 512) if WHERE.type == "cuda" else (3, 64)


def example(batch: int, classes: int, *, adjusted: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Features, weights, biases, labels and offsets."""
    random = torch.Generator().manual_seed(classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(DEVICES, *shape, generator=random).to(WHERE)

    labels = torch.randint(0, classes, (DEVICES, batch), generator=random).to(WHERE)
    offsets = normal(classes) if adjusted else None
    return normal(batch, FEATURES), normal(classes, FEATURES) / 8, normal(classes), labels, offsets


@pytest.mark.parametrize(("batch", "classes", "adjusted"), [(32, 10, False), (48, 100, True), (16, 16, True)])
def test_gradients_of_the_linear_layer_are_those_of_cross_entropy(batch: int, classes: int, *, adjusted: bool) -> None:
    from wayfare.engine.batched.head import linear_gradients

    features, linear, bias, labels, offsets = example(batch, classes, adjusted=adjusted)
    found = linear_gradients(features, linear, bias, labels, offsets)
    for device in range(DEVICES):
        entries = [each[device].double().requires_grad_() for each in (features, linear, bias)]
        logits = functional.linear(*entries)
        if offsets is not None:
            logits = logits + offsets[device]
        expected = torch.autograd.grad(functional.cross_entropy(logits, labels[device]), entries)
        for mine, truth in zip(found, expected, strict=True):
            assert float((mine[device] - truth).norm()) <= 1e-5 * float(truth.norm())


@pytest.mark.parametrize("batch", [32, 48])
def test_the_linear_layer_of_a_device_does_not_depend_on_others(batch: int) -> None:
    from wayfare.engine.batched.head import linear_gradients

    features, linear, bias, labels, offsets = example(batch, 10, adjusted=True)
    assert offsets is not None
    together = linear_gradients(features, linear, bias, labels, offsets)
    for device in range(DEVICES):
        mine = (each[device : device + 1].clone() for each in (features, linear, bias, labels, offsets))
        for one, all_ in zip(linear_gradients(*mine), together, strict=True):
            assert torch.equal(one[0], all_[device])


# The interpreter is NumPy, which warns.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_diverged_device_stays_nan_and_others_do_not_notice() -> None:
    from wayfare.engine.batched.head import linear_gradients

    features, linear, bias, labels, _ = example(16, 10, adjusted=False)
    expected = linear_gradients(features, linear, bias, labels, None)
    linear[1] = float("nan")
    found = linear_gradients(features, linear, bias, labels, None)
    for mine, truth in zip(found, expected, strict=True):
        assert bool(mine[1].isnan().all())
        assert torch.equal(mine[[0, 2]], truth[[0, 2]])


def test_parts_are_added_in_order() -> None:
    from wayfare.engine.batched.sums import sum_of_parts

    parts = torch.randn(5, DEVICES, 7, 200, generator=torch.Generator().manual_seed(0)).to(WHERE)
    expected = torch.zeros_like(parts[0])
    for part in parts:
        expected = expected + part
    assert torch.equal(sum_of_parts(parts), expected)


def test_norms_cover_all_tensors_of_a_device_and_do_not_depend_on_others() -> None:
    from wayfare.engine.batched.sums import norms

    random = torch.Generator().manual_seed(0)
    vectors = [torch.randn(DEVICES, *shape, generator=random).to(WHERE) for shape in ((5,), (3, 2500), (70, 64))]
    found = norms(vectors)
    expected = torch.cat([each.double().flatten(1) for each in vectors], dim=1).norm(dim=1)
    torch.testing.assert_close(found.double(), expected)
    alone = [norms([each[device : device + 1].clone() for each in vectors]) for device in range(DEVICES)]
    assert torch.equal(found, torch.cat(alone))
