from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.sparsify import remainder, top_k
from wayfare.sparsify.topk import kth_largest


def by_sorting(vector: torch.Tensor, k: int) -> list[int]:
    """Largest magnitude first, then lowest index: what top-k means."""
    return sorted(sorted(range(len(vector)), key=lambda place: (-abs(float(vector[place])), place))[:k])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-40]), min_size=1, max_size=30), st.data())
def test_top_k_is_exact_and_ties_go_to_the_lower_index(values: list[float], data: st.DataObject) -> None:
    vector = torch.tensor(values)
    k = data.draw(st.integers(0, len(values)))
    kept = top_k(vector, k)
    assert kept.indices.tolist() == by_sorting(vector, k)
    assert torch.equal(kept.values, vector[kept.indices])


@pytest.mark.parametrize("k", [1, 7, 500, 50_000, 99_999, 100_000])
@pytest.mark.parametrize("kind", ["normal", "constant", "steps", "sorted", "mostly zero"])
def test_the_sampled_search_finds_the_exact_threshold(k: int, kind: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal(100_000).astype(np.float32)
    if kind == "constant":
        values[:] = 3
    elif kind == "steps":
        values = np.round(values)
    elif kind == "sorted":
        values = np.sort(values)
    elif kind == "mostly zero":
        values[rng.random(100_000) < 0.99] = 0
    magnitude = np.abs(values)
    assert kth_largest(magnitude, k) == np.sort(magnitude)[-k]
    assert len(top_k(torch.from_numpy(values), k)) == k


def test_the_sampled_search_is_right_even_where_its_sample_misleads() -> None:
    values = np.zeros(1 << 16, dtype=np.float32)
    values[1::64] = np.arange(1, 1025)  # never seen by the sample
    for k in (1, 512, 1024, 1025, 60_000):
        assert kth_largest(values, k) == np.sort(values)[-k]


def test_what_is_kept_and_what_is_left_add_up_exactly() -> None:
    vector = torch.from_numpy(np.random.default_rng(0).standard_normal(10_000).astype(np.float32))
    kept = top_k(vector, 2_500)
    left = remainder(vector, kept)
    assert torch.count_nonzero(left[kept.indices]) == 0
    whole = left.clone()
    whole[kept.indices] += kept.values
    assert torch.equal(whole, vector)


def test_nothing_and_everything() -> None:
    vector = torch.tensor([3.0, -1.0])
    assert len(top_k(vector, 0)) == 0
    assert torch.equal(remainder(vector, top_k(vector, 0)), vector)
    assert torch.equal(remainder(vector, top_k(vector, 5)), torch.zeros(2))
