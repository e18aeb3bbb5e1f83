"""The CPU and GPU algorithms find the same largest entries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from wayfare.sparsify import Sparse, mask_indices, top_k, topk, with_tail
from wayfare.sparsify.topk import _largest_by_selection, _largest_by_threshold


def vectors() -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    smooth = rng.standard_normal(40_000).astype(np.float32)
    return [torch.from_numpy(values) for values in (smooth, np.round(2 * smooth), np.zeros_like(smooth))]


@pytest.mark.parametrize("k", [1, 17, 4_000, 39_999])
def test_selection_and_threshold_keep_the_same_entries(k: int) -> None:
    for vector in vectors():
        assert torch.equal(_largest_by_selection(vector, k), _largest_by_threshold(vector, k))


@pytest.mark.gpu
@pytest.mark.parametrize("k", [0, 1, 17, 4_000, 39_999, 40_000])
def test_a_gpu_keeps_the_same_entries_as_a_processor(k: int) -> None:
    for vector in vectors():
        here, there = top_k(vector, k), top_k(vector.cuda(), k)
        assert there.indices.is_cuda
        assert torch.equal(here.indices, there.indices.cpu())
        assert torch.equal(here.values, there.values.cpu())


@pytest.mark.parametrize("size", [0, 1, 3, 5])
@pytest.mark.parametrize("find", [mask_indices.first_indices, mask_indices.counted_indices])
def test_places_that_are_set_are_found_with_and_without_asking_how_many(
    size: int, find: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    mask = torch.tensor([False, True, False, True, True])
    assert find(mask, size).tolist() == [1, 3, 4, 0, 0][:size]


def test_a_processor_takes_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "_largest_by_selection", None)
    assert top_k(torch.tensor([1.0, -3.0, 2.0]), 2).indices.tolist() == [1, 2]


@pytest.mark.parametrize("k", [3, 500, 30_000, 99_000])
def test_only_a_bracket_of_five_standard_deviations_is_searched(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    select = topk._select
    monkeypatch.setattr(topk, "_select", lambda values, k: [searched.append(len(values)), select(values, k)][1])
    values = np.abs(np.random.default_rng(1).standard_normal(100_000)).astype(np.float32)
    topk.kth_largest(values, k)
    sample = np.sort(values[::64])
    share = 1 - k / len(values)
    rank, margin = len(sample) * share, 5 * np.sqrt(len(sample) * share * (1 - share)) + 1
    low, high = sample[int(max(rank - margin, 0))], sample[int(min(rank + margin, len(sample) - 1))]
    # Beyond the largest of the sample there is no bracket, and all values are searched.
    is_beyond = np.count_nonzero(values > high) >= k
    assert searched == [100_000 if is_beyond else np.count_nonzero((values >= low) & (values <= high))]


@pytest.mark.parametrize(("entries", "is_sampled"), [((1 << 14) - 1, False), (1 << 14, True)])
def test_short_vectors_are_searched_whole(entries: int, is_sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []
    select = topk._select
    monkeypatch.setattr(topk, "_select", lambda values, k: [searched.append(len(values)), select(values, k)][1])
    topk.kth_largest(np.arange(entries, dtype=np.float32), entries // 2)
    assert (searched[0] < entries) == is_sampled


def test_statistics_go_with_every_upload_that_has_an_entry() -> None:
    vector = torch.tensor([5.0, 6.0, 7.0, 8.0])
    kept = Sparse(torch.tensor([1]), torch.tensor([6.0]))
    whole = with_tail(kept, vector, 2)
    assert (whole.indices.tolist(), whole.values.tolist()) == ([1, 2, 3], [6.0, 7.0, 8.0])
    assert with_tail(kept, vector, 4) is kept
    nothing = Sparse(torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert with_tail(nothing, vector, 2) is nothing
