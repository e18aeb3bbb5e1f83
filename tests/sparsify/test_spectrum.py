"""Counts over an update: fast against plain algorithms, and GPU against CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.control.spectrum import SEGMENTS, Segments, distinct, log_spaced
from wayfare.sparsify import spectrum as module
from wayfare.sparsify.spectrum import norm_and_spectrum, spectrum, squared_norm

KINDS = ("heavy", "layers", "ties", "sparse", "constant", "unseen", "one segment")


def update(kind: str, entries: int) -> Tensor:
    rng = np.random.default_rng(entries)
    values = rng.standard_t(4, entries)
    match kind:
        case "layers":
            values *= np.repeat([1.0, 0.1, 3.0, 0.03], -(-entries // 4))[:entries]
        case "ties":
            values = np.round(3 * values)
        case "sparse":
            values *= rng.random(entries) < 0.01
        case "constant":
            values = np.ones(entries)
        case "unseen" | "one segment":
            # Nothing lies where a sample looks, so that tails are far longer than it lets expect.
            length = max(entries // SEGMENTS, 1)
            stride = max(entries // module._SAMPLE, 1) | 1
            values[np.arange(entries) % length % stride == 0] = 0.0
            if kind == "one segment":
                values[length:] = 0.0
    return torch.from_numpy(values.astype(np.float32))


def one_by_one(segments: Segments) -> list[tuple[Floats, Floats]]:
    """Of every segment the magnitudes from the largest on, and how many entries each stands for."""
    found = []
    for start, end, tail, weight in zip(segments.starts, segments.ends, segments.tails, segments.weights, strict=True):
        entries = np.full(end - start, weight)
        entries[len(entries) - tail :] = 1.0
        found.append((segments.magnitudes[start:end][::-1].astype(np.float64), entries[::-1]))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [7, 5_000, 50_000, 400_003])
def test_segments_count_as_if_magnitudes_were_looked_at_one_by_one(kind: str, entries: int) -> None:
    segments = spectrum(update(kind, entries)).segments
    bounds = segments.bounds()
    parts = one_by_one(segments)
    ends = [own[place] for own, _ in parts for place in (0, -1)]
    assert set(ends) <= set(bounds.tolist())
    assert (bounds[0], bounds[-1]) == (min(ends), max(ends))
    assert all(bool(np.all(np.diff(magnitudes) <= 0)) for magnitudes, _ in parts)
    counts = np.array([[each[own >= bound].sum() for bound in bounds] for own, each in parts])
    energies = np.array([[(each * own**2)[own >= bound].sum() for bound in bounds] for own, each in parts])
    np.testing.assert_allclose(segments.above(bounds), counts, rtol=1e-12)
    np.testing.assert_allclose(segments.energies(bounds), energies.sum(0), rtol=1e-12)
    np.testing.assert_allclose(segments.energies(bounds[::5]), energies.sum(0)[::5], rtol=1e-12)
    # Ranks that no rounding moves to another magnitude.
    shares = np.random.default_rng(0).uniform(0, 1, 200)
    ranks = np.stack([each.sum() * shares for _, each in parts])
    at = [own[np.cumsum(each).searchsorted(rank)] for (own, each), rank in zip(parts, ranks, strict=True)]
    np.testing.assert_array_equal(segments.at(ranks), at)


def test_ranks_beyond_a_segment_are_those_of_its_ends() -> None:
    segments = spectrum(update("heavy", 50_000)).segments
    ends = segments.at(np.tile([0.0, 1.0, 1e9], (len(segments), 1)))
    np.testing.assert_array_equal(ends[:, 0], segments.magnitudes[segments.ends - 1])
    np.testing.assert_array_equal(ends[:, 1], segments.magnitudes[segments.ends - 1])
    np.testing.assert_array_equal(ends[:, 2], segments.magnitudes[segments.starts])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [40_000, 400_003, 1_000_000])
def test_a_gpu_sees_what_a_processor_sees(kind: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU algorithm uses plain tensor operations, so it runs anywhere."""
    vector = update(kind, entries)
    here = spectrum(vector)
    monkeypatch.setattr(module, "_is_on_gpu", lambda _: True)
    there = spectrum(vector)
    for name in ("magnitudes", "starts", "ends", "tails", "weights"):
        np.testing.assert_array_equal(getattr(there.segments, name), getattr(here.segments, name))
    np.testing.assert_array_equal(there.kept, here.kept)
    np.testing.assert_array_equal(there.captured, here.captured)


@pytest.mark.parametrize("entries", [7, 5_000, 400_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_and_spectrum_in_one_transfer_are_those_of_two(
    entries: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = update("layers", entries).to(dtype)
    before = vector.clone()
    alone = float(squared_norm(vector)), spectrum(vector)
    assert alone[0] == float(before.double().square().sum())
    for _ in ("on a processor", "on a GPU"):
        norm_sq, see = norm_and_spectrum(vector)()
        assert norm_sq == alone[0]
        np.testing.assert_array_equal(see().captured, alone[1].captured)
        np.testing.assert_array_equal(see().segments.magnitudes, alone[1].segments.magnitudes)
        monkeypatch.setattr(module, "_is_on_gpu", lambda _: True)
    assert torch.equal(vector, before)


@pytest.mark.parametrize("worst", [torch.nan, torch.inf])
def test_a_diverged_vector_shows_in_its_norm(worst: float, monkeypatch: pytest.MonkeyPatch) -> None:
    vector = update("layers", 40_000)
    vector[17] = worst
    monkeypatch.setattr(module, "_is_on_gpu", lambda _: True)
    np.testing.assert_equal(norm_and_spectrum(vector)()[0], worst)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("entries", [5_000, 400_003])
def test_a_real_gpu_does_too(entries: int) -> None:
    vector = update("layers", entries)
    here, (norm_sq, see) = spectrum(vector), norm_and_spectrum(vector.cuda())()
    assert norm_sq == float(squared_norm(vector.cuda()))
    there = see()
    np.testing.assert_array_equal(there.kept, here.kept)
    np.testing.assert_array_equal(there.captured, here.captured)


def test_numbers_equally_far_apart_in_the_logarithm_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for first, last in zip(10 ** rng.uniform(0, 3, 50), 10 ** rng.uniform(3, 8, 50), strict=True):
        np.testing.assert_array_equal(log_spaced(first, last, 64), np.geomspace(first, last, 64))
    lasts = np.array([1, 2, 4096, 8000, 821_081])
    rows = [np.geomspace(1, last, 64) for last in lasts]
    np.testing.assert_array_equal(log_spaced(1, lasts, 64), rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [7, 32_767, 32_768, 400_003])
def test_a_spectrum_stands_for_every_entry_and_knows_its_tail(kind: str, entries: int) -> None:
    vector = update(kind, entries)
    found = spectrum(vector)
    segments = found.segments
    assert found.entries == entries
    assert found.kept[0] == found.captured[0] == 0.0
    assert np.all(np.diff(found.kept) > 0)
    assert found.captured[-1] == pytest.approx(float(bool(vector.any())))
    assert len(segments) == min(8, entries)
    is_sampled = entries >= 32_768
    rows = np.array_split(np.abs(vector.numpy()), min(8, entries))
    if is_sampled:
        rows = list(np.abs(vector.numpy())[: 8 * (entries // 8)].reshape(8, -1))
    np.testing.assert_allclose(segments.above(np.zeros(1))[:, 0], [len(row) for row in rows])
    stride = max(entries // 32_768, 1) | 1
    for row, start, end, tail, weight in zip(
        rows, segments.starts, segments.ends, segments.tails, segments.weights, strict=True
    ):
        own = segments.magnitudes[start:end]
        if not is_sampled:
            np.testing.assert_array_equal(own, np.sort(row))
            assert (tail, weight) == (len(row), 1.0)
            continue
        # The ninth largest of the sample bounds the tail, all of which is there.
        bound = np.sort(row[::stride])[-9]
        np.testing.assert_array_equal(own[len(own) - tail :], np.sort(row[row > bound]))
        body = np.sort(row[::stride])
        np.testing.assert_array_equal(own[: len(own) - tail], body[body <= bound])
        assert weight == pytest.approx((len(row) - tail) / np.count_nonzero(body <= bound))


def test_a_curve_has_64_points_equally_far_apart_in_the_logarithm() -> None:
    vector = update("heavy", 400_003)
    found = spectrum(vector)
    assert 40 < len(found.kept) <= 65
    ratios = np.diff(np.log(found.kept[2:]))
    assert np.median(ratios) == pytest.approx(np.log(400_003) / 63, rel=0.1)
    magnitudes = np.sort(np.abs(vector.double().numpy()))[::-1]
    energy = np.append(0.0, np.cumsum(magnitudes**2)) / np.sum(magnitudes**2)
    np.testing.assert_allclose(found.captured, energy[found.kept.round().astype(int)], rtol=0.05)
    # Where ranks lie between magnitudes, the smaller one has them.
    whole = found.whole
    assert whole.at(whole.ranks[:3]).tolist() == whole.magnitudes[:3].tolist()
    assert whole.at(np.array([whole.ranks[1] + 0.5, 1e9])).tolist() == [whole.magnitudes[2], whole.magnitudes[-1]]


def test_each_of_rising_numbers_is_there_once() -> None:
    assert distinct(np.array([1.0, 1.0, 2.0, 3.0, 3.0, 3.0])).tolist() == [1.0, 2.0, 3.0]
    assert distinct(np.array([5])).tolist() == [5]
