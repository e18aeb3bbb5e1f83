"""Kernels for vectors on a GPU give what a CPU gives, in every bit."""

from __future__ import annotations

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels

from wayfare.sparsify import Sparse, remainder, top_k

pytestmark = with_kernels

# Several blocks.
LONG = 500_000 if WHERE.type == "cuda" else 5_000


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes long for every program."""
    from wayfare.sparsify import gpu_kernels

    if WHERE.type == "cpu":
        monkeypatch.setattr(gpu_kernels, "_RANKED", 256)


def vectors(entries: int) -> list[torch.Tensor]:
    """Plain numbers, many ties, zeros alone, denormal numbers, one number above all, half zeros, and sorted numbers.

    A bracket of the first is right; that of others holds too many entries.
    """
    drawn = torch.randn(entries, generator=torch.Generator().manual_seed(entries))
    alone = torch.zeros(entries)
    alone[entries // 2] = -3e38
    half = torch.where(torch.arange(entries) < entries // 2, 0.0, drawn)
    return [drawn, (2 * drawn).round(), torch.zeros(entries), 1e-42 * drawn, alone, half, drawn.sort().values]


@pytest.mark.parametrize("entries", [2, LONG])
def test_kernels_keep_the_largest_entries_and_the_first_of_equal_ones(entries: int) -> None:
    from wayfare.sparsify.gpu_largest import largest

    for vector in vectors(entries):
        for k in {1, entries - entries // 3 - 1}:
            indices, values = largest(vector.to(WHERE), k)
            expected = top_k(vector, k)
            assert torch.equal(indices.cpu(), expected.indices)
            assert torch.equal(values.cpu(), expected.values)


def test_a_wrong_bracket_makes_kernels_search_all_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    from wayfare.sparsify import gpu_largest

    vector, k = vectors(LONG)[0], LONG // 4
    expected = top_k(vector, k)
    for ranks in ((1, 100, 10, 1), (1, 100, 200, 90), (1, 100, 200, 0)):
        monkeypatch.setattr(gpu_largest, "_sample_ranks", lambda entries, k, ranks=ranks: ranks)
        indices, values = gpu_largest.largest(vector.to(WHERE), k)
        assert torch.equal(indices.cpu(), expected.indices)
        assert torch.equal(values.cpu(), expected.values)


def test_kernels_add_squares_in_double_precision() -> None:
    from wayfare.sparsify.gpu_kernels import squared_norm

    vector = vectors(LONG)[0]
    assert float(squared_norm(vector.to(WHERE))) == pytest.approx(float(vector.double().square().sum()), rel=1e-13)


def test_kernels_subtract_entries() -> None:
    from wayfare.sparsify.gpu_kernels import subtract_at

    vector = vectors(5_000)[0]
    kept = top_k(vector, 1_700)
    sent = Sparse(kept.indices, 0.7 * kept.values)
    left = vector.to(WHERE, copy=True)
    subtract_at(left, sent.indices.to(WHERE), sent.values.to(WHERE))
    assert torch.equal(left.cpu(), remainder(vector, sent))


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("length", [3, 300])
def test_kernels_sort_samples(length: int, stride: int) -> None:
    from wayfare.sparsify.gpu_kernels import sorted_samples

    drawn = torch.randn(8, length, generator=torch.Generator().manual_seed(length))
    for rows in (drawn, drawn.round(), torch.zeros(8, length)):
        expected = rows[:, ::stride].abs().sort().values
        assert torch.equal(sorted_samples(rows.to(WHERE), stride).cpu(), expected)


@pytest.mark.parametrize("length", [3, 4_097])
def test_kernels_sort_the_tails_of_segments(length: int) -> None:
    from wayfare.sparsify.gpu_kernels import beyond

    rows = torch.randn(8, length, generator=torch.Generator().manual_seed(length))
    bounds = torch.linspace(1.0, 3.0, 8)
    bounds[5] = 100.0
    tails = [row[row > bound].sort().values for row, bound in zip(rows.abs(), bounds, strict=True)]
    strided = torch.stack([bounds, 0 * bounds], 1).to(WHERE)[:, 0]
    needed = sum(map(len, tails))
    found, numbers = beyond(rows.to(WHERE), strided, needed + 50)
    assert numbers.tolist() == list(map(len, tails))
    assert torch.equal(found[:needed].cpu(), torch.cat(tails))
    # With too little room the numbers are still right.
    assert beyond(rows.to(WHERE), strided, 5)[1].tolist() == list(map(len, tails))
