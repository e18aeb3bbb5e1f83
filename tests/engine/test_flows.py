"""Sums along prepared lists: those of `index_add`, with the right derivative and the same bits again."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor

from wayfare.engine.lanegcn.flows import Flow, Sum, met, spread
from wayfare.engine.lanegcn.fused import fused_kernels

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
    torch.testing.assert_close(flow(rows, 1)[0], expected)
    back = torch.zeros(GIVERS, FEATURES, dtype=torch.float64).index_add(0, giver, expected[receiver])
    torch.testing.assert_close(flow.reverse(expected, 1)[0], back)


@pytest.mark.parametrize("links", [1, 40])
def test_a_flow_and_its_reverse_have_the_right_derivative(links: int) -> None:
    _, _, flow = drawn(links)
    for one, size in ((flow, GIVERS), (flow.reverse, RECEIVERS)):
        rows = torch.randn(size, FEATURES, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(one, (rows, 1))


def test_one_giver_for_each_receiver_is_a_choice_of_rows() -> None:
    giver = torch.tensor([4, 0, 4, 2])
    order = torch.argsort(giver, stable=True)
    first = torch.searchsorted(giver[order], torch.arange(GIVERS)).int()
    flow = Flow(Sum(giver.int()), Sum(order.int(), first))
    rows = torch.randn(GIVERS, FEATURES, dtype=torch.float64, requires_grad=True)
    assert torch.equal(flow(rows, 2), rows[giver].view(2, 2, FEATURES))
    assert torch.autograd.gradcheck(flow, (rows, 2))
    back = torch.randn(2, 2, FEATURES, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(flow.reverse, (back, GIVERS))


def choice(giver: Tensor, givers: int) -> Flow:
    """A flow that gives every receiver one row."""
    order = torch.argsort(giver, stable=True)
    return Flow(Sum(giver.int()), Sum(order.int(), torch.searchsorted(giver[order], torch.arange(givers)).int()))


def test_two_choices_of_rows_are_added() -> None:
    one, other = torch.tensor([4, 0, 4, 2]), torch.tensor([1, 1, 0, 2])
    flows = choice(one, GIVERS), choice(other, RECEIVERS)
    rows, more = (torch.randn(size, FEATURES, dtype=torch.float64, requires_grad=True) for size in (GIVERS, RECEIVERS))
    assert torch.equal(met(flows[0], rows, flows[1], more, 2), (rows[one] + more[other]).view(2, 2, FEATURES))
    assert torch.autograd.gradcheck(lambda *both: met(flows[0], both[0], flows[1], both[1], 2), (rows, more))


def test_tensors_are_spread_together_as_each_alone_and_their_gradients_are_dense() -> None:
    flow = choice(torch.tensor([0, 0, 1, 2, 2, 2]), 3)
    stacks = [torch.randn(3, *shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 2), (5,), (1, 3))]
    for found, stack in zip(spread(flow, stacks), stacks, strict=True):
        assert torch.equal(found, flow(stack.flatten(1), 6).view(6, *stack.shape[1:]))
    assert torch.autograd.gradcheck(lambda *given: spread(flow, given), stacks)
    gradients = torch.autograd.grad(sum(found.square().sum() for found in spread(flow, stacks)), stacks)
    assert all(gradient.is_contiguous() for gradient in gradients)


@with_kernels
@pytest.mark.parametrize("features", [128, 12])
def test_the_kernel_adds_rows_of_two_tables(features: int) -> None:
    rng = torch.Generator().manual_seed(features)
    rows, more = (torch.randn(size, features, generator=rng).to(WHERE) for size in (37, 5))
    # Lists that begin anywhere within longer ones, as those of a step do.
    one, other = (torch.randint(0, size, (301,), generator=rng).int().to(WHERE)[3:] for size in (37, 5))
    kernels = fused_kernels(WHERE)
    assert kernels is not None
    assert torch.equal(kernels.sum_of_two(rows, one, more, other), rows[one.long()] + more[other.long()])
    rows, more = rows.bfloat16(), more.bfloat16()
    # The interpreter cuts bits off where a GPU rounds.
    torch.testing.assert_close(
        kernels.sum_of_two(rows, one, more, other), rows[one.long()] + more[other.long()], rtol=2**-7, atol=0
    )


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
        found = [(flow(rows, 1), torch.autograd.grad(flow(rows, 1).square().sum(), rows)[0]) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))
