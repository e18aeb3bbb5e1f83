from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.engine import Compute
from wayfare.sparsify import Sparse, remainder, subtract, top_k
from wayfare.sparsify.memory import spread
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


def bits_of(vector: torch.Tensor) -> torch.Tensor:
    """Zeros of both signs differ here."""
    return vector.cpu().view(torch.int32)


@pytest.mark.parametrize("k", [0, 1, 300, 9_999])
def test_entries_spread_among_zeros_are_those_put_by_index(k: int) -> None:
    """The GPU algorithm on a CPU: sent values and remainder are bit-identical."""
    vector = torch.from_numpy(np.random.default_rng(k).standard_normal(10_000).astype(np.float32))
    vector[::7] = -0.0
    kept = top_k(vector, k)
    sent = Sparse(kept.indices, 0.9 * kept.values)
    assert torch.equal(bits_of(vector - spread(sent, len(vector))), bits_of(remainder(vector, sent)))
    there, here = vector - spread(Sparse(sent.indices, 0.05 * sent.values), len(vector)), vector.clone()
    subtract(here, sent, 0.05)
    assert torch.equal(bits_of(there), bits_of(here))


class Elsewhere(torch.Tensor):
    """A vector that claims to be on a GPU, to select the GPU algorithm."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


@pytest.mark.parametrize("k", [0, 1, 300, 9_999, 10_000])
def test_the_way_of_a_gpu_takes_off_and_leaves_the_same(k: int) -> None:
    vector = torch.from_numpy(np.random.default_rng(k).standard_normal(10_000).astype(np.float32))
    sent, there = top_k(vector, k), vector.as_subclass(Elsewhere)  # type: ignore[arg-type]
    assert torch.equal(bits_of(remainder(there, sent).as_subclass(torch.Tensor)), bits_of(remainder(vector, sent)))
    here, model = torch.ones(10_000), torch.ones(10_000).as_subclass(Elsewhere)  # type: ignore[arg-type]
    subtract(here, sent, 0.125)
    subtract(model, sent, 0.125)
    assert torch.equal(model.as_subclass(torch.Tensor), here)
    assert torch.equal(here, 1 - 0.125 * spread(sent, 10_000))


@pytest.mark.gpu
@pytest.mark.parametrize("k", [0, 1, 300, 9_999, 10_000])
def test_a_gpu_takes_off_what_a_processor_takes_off(k: int) -> None:
    vector = torch.from_numpy(np.random.default_rng(k).standard_normal(10_000).astype(np.float32))
    kept = top_k(vector, k)
    with Compute.named("cuda").numerics():
        there = Sparse(kept.indices.cuda(), kept.values.cuda())
        assert torch.equal(bits_of(remainder(vector.cuda(), there)), bits_of(remainder(vector, kept)))
        models = [torch.ones(10_000), torch.ones(10_000, device="cuda")]
        for model, sent in zip(models, (kept, there), strict=True):
            subtract(model, sent, 0.125)
    # A power of two, so that a product and a sum in one step round like the two of them.
    assert torch.equal(models[1].cpu(), models[0])
