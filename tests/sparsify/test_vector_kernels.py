"""Kernels for vectors on a GPU give what a CPU gives, in every bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels

from wayfare.sparsify import Sparse, gpu, remainder, top_k, with_tail

pytestmark = with_kernels

# Several blocks.
LONG = 500_000 if WHERE.type == "cuda" else 5_000


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


def test_kernels_add_statistics_to_kept_entries() -> None:
    from wayfare.sparsify.gpu_kernels import extended
    from wayfare.sparsify.gpu_largest import largest

    vector = vectors(5_000)[0]
    for parameters, kept in ((4_999, 1), (2_000, 1_900)):
        chosen = top_k(vector[:parameters], kept)
        expected = with_tail(chosen, vector, parameters)
        here = vector.to(WHERE)
        found = extended(*largest(here[:parameters], kept), here, parameters)
        assert torch.equal(found[0].cpu(), expected.indices)
        assert torch.equal(found[1].cpu(), expected.values)


def test_statistics_are_added_in_place_only_to_entries_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    vector, parameters = vectors(5_000)[0], 4_000
    chosen = top_k(vector[:parameters], 700)
    expected = with_tail(chosen, vector, parameters)
    monkeypatch.setattr(gpu, "has_kernels", lambda _: True)
    here = vector.to(WHERE)
    kept = top_k(here[:parameters], 700)
    whole, other = with_tail(kept, here, parameters), with_tail(replace(kept, values=-kept.values), here, parameters)
    assert whole.indices.data_ptr() == kept.indices.data_ptr() != other.indices.data_ptr()
    assert torch.equal(whole.indices.cpu(), expected.indices)
    assert torch.equal(whole.values.cpu(), expected.values)
    assert torch.equal(other.indices.cpu(), expected.indices)
    assert torch.equal(other.values.cpu()[:700], -expected.values[:700])
    assert torch.equal(other.values.cpu()[700:], expected.values[700:])


def test_kernels_subtract_entries() -> None:
    from wayfare.sparsify.gpu_kernels import subtract_at

    vector = vectors(5_000)[0]
    kept = top_k(vector, 1_700)
    sent = Sparse(kept.indices, 0.7 * kept.values)
    left = vector.to(WHERE, copy=True)
    subtract_at(left, sent.indices.to(WHERE), sent.values.to(WHERE), 1.0)
    assert torch.equal(left.cpu(), remainder(vector, sent))
    # The product is rounded before the difference.
    less, expected = vector.to(WHERE, copy=True), vector.clone()
    subtract_at(less, sent.indices.to(WHERE), sent.values.to(WHERE), 1 / 20)
    expected[sent.indices] -= 1 / 20 * sent.values
    assert torch.equal(less.cpu(), expected)


@pytest.mark.parametrize(("length", "stride"), [(20, 1), (4_097, 41)])
def test_kernels_sort_samples_and_tails_of_segments_and_add_squares(length: int, stride: int) -> None:
    from wayfare.sparsify.gpu_kernels import norm_and_samples

    drawn = torch.randn(8, length, generator=torch.Generator().manual_seed(length))
    # Of one segment nothing lies above the bound, and a few entries belong to no segment.
    drawn[5] = 1.0
    for rows in (drawn, drawn.round(), torch.zeros(8, length))[: 1 if length > 20 else 3]:
        vector = torch.cat([rows.flatten(), torch.ones(3)])
        samples = rows[:, ::stride].abs().sort().values
        count, bound = samples.shape[1], samples.shape[1] - 9
        tails = [row[row > each[bound]].sort().values for row, each in zip(rows.abs(), samples, strict=True)]
        needed = sum(map(len, tails))
        for room in (needed + needed % 2 + 50, 6):
            found = norm_and_samples(vector.to(WHERE), 8, stride, bound, room).cpu()
            assert len(found) == 8 * count + room + 8 + 2
            assert torch.equal(found[: 8 * count].view(8, count), samples)
            # With too little room the numbers are still right.
            assert found[-10:-2].tolist() == list(map(len, tails))
            if needed <= room:
                assert torch.equal(found[8 * count : 8 * count + needed], torch.cat(tails))
            norm_sq = float(found[-2:].view(torch.float64))
            assert norm_sq == pytest.approx(float(vector.double().square().sum()), rel=1e-13)
