"""The ways of a processor and of a GPU to the largest entries lead to the same ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from wayfare.sparsify import places, top_k
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
@pytest.mark.parametrize("find", [places.first_places, places.counted_places])
def test_places_that_are_set_are_found_with_and_without_asking_how_many(
    size: int, find: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    mask = torch.tensor([False, True, False, True, True])
    assert find(mask, size).tolist() == [1, 3, 4, 0, 0][:size]
