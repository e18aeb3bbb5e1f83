"""The worth of bits: hulls against all points, the closed form against an optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from wayfare.codec.indices import encode_indices
from wayfare.control.rate_distortion import Curve, Width, best_bits, curve, index_bits, power_watts
from wayfare.sparsify import top_k
from wayfare.sparsify.spectrum import spectrum

WIDTHS = {
    32: Width(value_bits=32, bits=32.0, lost=0.0),
    8: Width(value_bits=8, bits=7.2, lost=3e-5),
    4: Width(value_bits=4, bits=3.2, lost=6.5e-3),
    1: Width(value_bits=1, bits=1.06, lost=0.16),
}


def vector(entries: int = 30_000, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(4, entries).astype(np.float32))


def hull() -> Curve:
    seen = spectrum(vector())
    return curve(seen.kept, seen.captured, WIDTHS, 300.0)


@pytest.mark.parametrize("entries", [1, 10, 5_000, 100_000, 1_000_000])
def test_a_spectrum_says_what_the_largest_entries_hold(entries: int) -> None:
    x = vector(entries)
    seen = spectrum(x)
    assert seen.entries == entries
    assert seen.kept[0] == seen.captured[0] == 0
    assert seen.captured[-1] == pytest.approx(1)
    assert bool(np.all(np.diff(seen.captured) > 0))
    for share in (0.01, 0.1, 0.3):
        k = max(int(share * entries), 1)
        truth = float(top_k(x, k).values.double().square().sum() / x.double().square().sum())
        assert np.interp(k, seen.kept, seen.captured) == pytest.approx(truth, rel=0.05, abs=0.02)


def test_a_vector_of_zeros_captures_nothing() -> None:
    assert float(spectrum(torch.zeros(100)).captured.max()) == 0


def test_index_bits_are_what_the_encoder_takes() -> None:
    x, entries = vector(200_000), 200_000
    for k in (2_000, 20_000, 60_000):
        _, data = encode_indices(top_k(x, k).indices.numpy(), entries)
        assert 8 * len(data) == pytest.approx(float(index_bits(np.array([k]), entries)[0]), rel=0.03, abs=2_100)


def test_no_point_lies_above_the_hull_and_its_slopes_fall() -> None:
    seen, found = spectrum(vector()), hull()
    assert bool(np.all(np.diff(found.slopes) < 0))
    assert found.bits[0] == found.captured[0] == 0
    for width in WIDTHS.values():
        bits = 300.0 + index_bits(seen.kept[1:], seen.entries) + seen.kept[1:] * width.bits
        beyond = bits > found.bits[-1]
        reached = np.interp(bits, found.bits, found.captured)
        assert bool(np.all(seen.captured[1:] * (1 - width.lost) <= reached + 1e-12) | beyond.any())
        assert bool(np.all((seen.captured[1:] * (1 - width.lost))[~beyond] <= reached[~beyond] + 1e-12))


def test_four_bits_of_value_are_best_until_nearly_everything_is_sent() -> None:
    found = hull()
    widths = found.value_bits[1:]
    few = found.kept[1:] < 0.3 * found.kept[-1]
    assert bool(np.all(widths[few] == 4))
    assert widths[-1] == 32


def test_the_closed_form_is_the_minimum() -> None:
    rng, of = np.random.default_rng(5), hull()
    for _ in range(400):
        worth, backlog = 10 ** rng.uniform(-4, 3), 10 ** rng.uniform(-3, 2)
        contact_s, gain = rng.uniform(0.1, 10), 10 ** rng.uniform(1, 6)
        bandwidth_hz, most_watts = 10 ** rng.uniform(3, 6), 0.2
        radio = {"contact_s": contact_s, "gain_per_watt": gain, "bandwidth_hz": bandwidth_hz}

        def cost(
            bits: float,
            worth: float = worth,
            backlog: float = backlog,
            contact_s: float = contact_s,
            radio: dict[str, float] = radio,
        ) -> float:
            spent = contact_s * power_watts(bits, **radio)
            return -worth * float(np.interp(bits, of.bits, of.captured)) + backlog * spent

        found = best_bits(of, worth=worth, backlog_joules=backlog, max_power_watts=most_watts, **radio)
        most = min(of.bits[-1], contact_s * bandwidth_hz * np.log2(1 + most_watts * gain))
        assert 0 <= found <= most * (1 + 1e-12)
        grid = [cost(bits) for bits in np.linspace(0, most, 2000)]
        fine = minimize_scalar(cost, bounds=(0, most), method="bounded", options={"xatol": 1e-6 * most}).fun
        assert cost(found) <= min(*grid, fine) + 1e-9 * worth


def test_without_a_backlog_everything_that_fits_is_sent_and_without_worth_nothing() -> None:
    of = hull()
    radio = {"contact_s": 1.0, "gain_per_watt": 1e3, "bandwidth_hz": 1e9, "max_power_watts": 0.2}
    assert best_bits(of, worth=1.0, backlog_joules=0.0, **radio) == of.bits[-1]
    assert best_bits(of, worth=0.0, backlog_joules=1.0, **radio) == 0
    radio["bandwidth_hz"] = 1e3
    assert best_bits(of, worth=1.0, backlog_joules=0.0, **radio) == pytest.approx(1e3 * np.log2(201))
