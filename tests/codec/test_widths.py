"""Forecasts of cost and loss at every width use the same arithmetic as the encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wayfare.codec import widths as module
from wayfare.codec.steps import ValueBits, lower_scale, middles_of, steps_of
from wayfare.codec.values import quantise
from wayfare.codec.widths import profile
from wayfare.control.rate_distortion import index_bits
from wayfare.control.spectrum import Spectrum
from wayfare.sparsify.spectrum import spectrum


def seen(entries: int, scale: float = 1.0) -> Spectrum:
    rng = np.random.default_rng(entries)
    scales = scale * np.repeat([1.0, 0.1, 3.0, 0.03], -(-entries // 4))[:entries]
    return spectrum(torch.from_numpy((scales * rng.standard_t(4, entries)).astype(np.float32)))


# Beside plain updates one with denormal magnitudes.
@pytest.mark.parametrize(("entries", "scale"), [(3, 1.0), (20_000, 1.0), (400_003, 1.0), (50_000, 1e-41)])
def test_typical_blocks_lose_and_cost_what_the_encoder_makes_of_them(entries: int, scale: float) -> None:
    of = seen(entries, scale)
    looks = of.kept[-1:]
    blocks, sizes, of_look = module._typical_blocks(of, looks)
    assert bool(np.all(np.diff(blocks) <= 0))
    assert float(sizes.sum()) == pytest.approx(entries, rel=1e-3)
    assert set(of_look.tolist()) == {0}
    offered = profile(of)
    for width in offered.widths[1:]:
        bits: ValueBits = width.value_bits  # type: ignore[assignment]
        lost, energy, counts = 0.0, 0.0, np.zeros(2**bits)
        for block, size in zip(blocks, sizes, strict=True):
            values = torch.from_numpy(block.astype(np.float32))
            _, codes, decode = quantise(values, bits)
            away = (decode() - values).double().square().mean()
            lost, energy = lost + size * float(away), energy + size * float(np.square(block, dtype=np.float64).mean())
            counts += size * np.bincount(codes.numpy(), minlength=2**bits)
        shares = counts[counts > 0] / counts.sum()
        coded = 1.0 - float((shares * np.log2(shares)).sum()) + (16 + 8 * 2**bits) / entries
        assert width.lost[-1] == pytest.approx(min(lost / max(energy, 1e-300), 1.0), rel=1e-9)
        beside = offered.widths[0].bits[-1] - 32.0
        assert width.bits[-1] == pytest.approx(64 / 1024 + beside + min(coded, bits), rel=1e-9)


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_arrays_and_tensors_are_quantised_alike(bits: ValueBits) -> None:
    rng = np.random.default_rng(bits)
    magnitude = rng.integers(0, 0x7F800000, (200, 30))
    magnitude[:20] = magnitude[:20, :1] + rng.integers(0, 5, (20, 30))
    largest = magnitude.max(1, keepdims=True)
    low = lower_scale(magnitude.min(1, keepdims=True), largest)
    span = largest - low + 1
    steps = steps_of(magnitude, low, span, bits)
    middles = middles_of(steps, low, span, bits)
    assert bool(np.all((middles >= low) & (middles <= largest)))
    magnitude_there, low_there, span_there = (torch.from_numpy(array) for array in (magnitude, low, span))
    steps_there = steps_of(magnitude_there, low_there, span_there, bits)
    np.testing.assert_array_equal(steps_there.numpy(), steps)
    np.testing.assert_array_equal(middles_of(steps_there, low_there, span_there, bits).numpy(), middles)


@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_steps_and_their_middles_are_those_of_whole_numbers(bits: ValueBits) -> None:
    """What goes through double precision is not rounded: also right at, before and behind the edges of steps."""
    rng = np.random.default_rng(bits)
    steps = 1 << (bits - 1)
    low, span = rng.integers(0, 0x70000000, (300, 1)), rng.integers(1, (24 << 23) + 2, (300, 1))
    span[:100] = rng.integers(1, 40, (100, 1))
    span[100:110, 0] = steps * np.arange(1, 11)
    edges = -(-rng.integers(0, steps + 1, (300, 200)) * span // steps)
    for away in (-2, -1, 0, 1, 2):
        magnitude = low + np.clip(edges + away, -2, span - 1)
        exact = ((magnitude - low) * steps // span).clip(0, steps - 1)
        found = steps_of(magnitude, low, span, bits)
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(middles_of(found, low, span, bits), low + ((2 * exact + 1) * span >> bits))


@pytest.mark.parametrize(("entries", "first"), [(500, 1.0), (1500, 1.5), (40_000, 40.0)])
def test_values_are_looked_at_from_a_thousandth_of_the_entries_on(
    entries: int, first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[np.ndarray] = []
    typical = module._typical_blocks
    monkeypatch.setattr(module, "_typical_blocks", lambda of, at: (looks.append(at), typical(of, at))[1])
    profile(seen(entries))
    assert looks[0] == pytest.approx(np.geomspace(first, entries, 6))


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**30])
def test_the_scale_of_an_update_changes_nothing(scale: float) -> None:
    """A power of two moves every exponent alike, so steps and shares stay as they are."""
    vector = torch.from_numpy(np.random.default_rng(0).standard_t(4, 3000).astype(np.float32))
    plain, scaled = profile(spectrum(vector)), profile(spectrum(vector * scale))
    np.testing.assert_allclose(scaled.captured, plain.captured, rtol=1e-9)
    for one, other in zip(plain.widths, scaled.widths, strict=True):
        np.testing.assert_allclose(other.bits, one.bits, rtol=1e-9)
        np.testing.assert_allclose(other.lost, one.lost, rtol=1e-6, atol=1e-15)


def test_a_table_of_gaps_has_six_mean_gaps_and_at_most_a_byte() -> None:
    kept = np.array([500_000.0, 10_000.0])
    # Gaps of 2 and 100: 12 places in the table, and all 256.
    expected = [(16 + 8 * 12) / 500_000, (16 + 8 * 256) / 10_000]
    np.testing.assert_allclose(module._index_table_bits(kept, 1_000_000), expected, rtol=1e-12)
    # One entry has no table: its gap takes a byte and one more for each 255 places.
    alone = module._index_table_bits(np.array([1.0]), 5100)
    np.testing.assert_allclose(alone, 8 * (1 + 5100 / 255) - index_bits(np.array([1.0]), 5100), rtol=1e-12)
