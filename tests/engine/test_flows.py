"""Sums along prepared lists: those of `index_add`, with the right derivative and the same bits again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wayfare.engine.flows import Flow, Sum

GIVERS, RECEIVERS, FEATURES = 7, 5, 3


def lists(receiver: Tensor, giver: Tensor) -> tuple[Tensor, Tensor, Flow]:
    """Links sorted by receiver, and the flow along them."""
    order = torch.argsort(receiver, stable=True)
    receiver, giver = receiver[order], giver[order]
    back = torch.argsort(giver, stable=True)
    return (
        receiver,
        giver,
        Flow(
            Sum(giver.int(), torch.searchsorted(receiver, torch.arange(RECEIVERS)).int()),
            Sum(receiver[back].int(), torch.searchsorted(giver[back], torch.arange(GIVERS)).int()),
        ),
    )


def drawn(links: int, seed: int = 0) -> tuple[Tensor, Tensor, Flow]:
    rng = torch.Generator().manual_seed(seed)
    # Some never receive and some never give.
    return lists(
        torch.randint(0, RECEIVERS - 1, (links,), generator=rng), torch.randint(1, GIVERS, (links,), generator=rng)
    )


@pytest.mark.parametrize("links", [0, 1, 40])
def test_a_flow_is_what_index_add_sums(links: int) -> None:
    receiver, giver, flow = drawn(links)
    rows = torch.randn(GIVERS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(RECEIVERS, FEATURES, dtype=torch.float64).index_add(0, receiver, rows[giver])
    torch.testing.assert_close(flow(rows), expected)
    back = torch.zeros(GIVERS, FEATURES, dtype=torch.float64).index_add(0, giver, expected[receiver])
    torch.testing.assert_close(flow.reverse(expected), back)


@pytest.mark.parametrize("links", [1, 40])
def test_a_flow_and_its_reverse_have_the_right_derivative(links: int) -> None:
    _, _, flow = drawn(links)
    for one, size in ((flow, GIVERS), (flow.reverse, RECEIVERS)):
        rows = torch.randn(size, FEATURES, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(one, rows)


def test_one_giver_for_each_receiver_is_a_choice_of_rows() -> None:
    giver = torch.tensor([4, 0, 4, 2])
    order = torch.argsort(giver, stable=True)
    first = torch.searchsorted(giver[order], torch.arange(GIVERS)).int()
    flow = Flow(Sum(giver.int()), Sum(order.int(), first))
    rows = torch.randn(GIVERS, FEATURES, dtype=torch.float64, requires_grad=True)
    assert torch.equal(flow(rows), rows[giver])
    assert torch.autograd.gradcheck(flow, rows)
    assert torch.autograd.gradcheck(flow.reverse, torch.randn(4, FEATURES, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sums_repeat_bit_by_bit_where_only_repeatable_operations_are_allowed(device: str) -> None:
    rng = torch.Generator().manual_seed(0)
    receiver = torch.randint(0, RECEIVERS, (20_000,), generator=rng)
    _, _, made = lists(receiver, torch.randint(0, GIVERS, (20_000,), generator=rng))
    sums = [
        Sum(one.givers.to(device), None if one.first is None else one.first.to(device))
        for one in (made.onward, made.back)
    ]
    flow, rows = Flow(*sums), torch.randn(GIVERS, 128, generator=rng).to(device).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        found = [(flow(rows), torch.autograd.grad(flow(rows).square().sum(), rows)[0]) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))
