"""Propositions 1 and 2 of the paper: equations only, for scalars and arrays alike.

Problem P3 of one contact: choose the power p in [0, P] that minimises

    -V theta tau B |x|^2 3 / (s b) log2(1 + p g) + tau p q

where tau is the contact time, theta the staleness, q the energy backlog, g = |h|^2 / (B N0), s the number of
parameters and b the bits of a kept entry.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from wayfare.arrays import Floats, Ints

Variant: TypeAlias = Literal["corrected", "printed"]


def full_update_power_watts(
    *,
    contact_s: ArrayLike,
    gain_per_watt: ArrayLike,
    bandwidth_hz: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    max_power_watts: ArrayLike,
    statistics_bits: ArrayLike = 0.0,
) -> Floats:
    """P = min(p_max, (2^need - 1) / g) watts, need = s b / (tau B): the power at which all entries fit (k = s).

    The bits of normalisation statistics, which the paper ignores, are added to s b.

    The comparison is made on the exponent, because 2^need overflows for short contacts.
    """
    contact, gain, max_power = _floats(contact_s, gain_per_watt, max_power_watts)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        bits = np.multiply(parameters, bits_per_entry) + np.asarray(statistics_bits)
        need = bits / (contact * np.asarray(bandwidth_hz, dtype=np.float64))
        exceeds = (contact <= 0) | (np.log(2.0) * need >= np.log1p(max_power * gain))
        return np.where(exceeds, max_power, np.expm1(np.log(2.0) * need) / gain)


def optimal_power_watts(
    *,
    contact_s: ArrayLike,
    gain_per_watt: ArrayLike,
    staleness_rounds: ArrayLike,
    update_norm_sq: ArrayLike,
    backlog_joules: ArrayLike,
    weight: ArrayLike,
    bandwidth_hz: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    max_power_watts: ArrayLike,
    statistics_bits: ArrayLike = 0.0,
    variant: Variant = "corrected",
) -> Floats:
    """The minimiser of P3 in watts (Proposition 2, with the 1/ln 2 that is missing in print).

    p* = clip(K / (q ln 2) - 1/g, 0, P),  K = 3 V theta B |x|^2 / (s b);  without ln 2 as printed
    """
    contact, gain, backlog = _floats(contact_s, gain_per_watt, backlog_joules)
    cap = full_update_power_watts(
        contact_s=contact,
        gain_per_watt=gain,
        bandwidth_hz=bandwidth_hz,
        parameters=parameters,
        bits_per_entry=bits_per_entry,
        max_power_watts=max_power_watts,
        statistics_bits=statistics_bits,
    )
    value = np.asarray(np.multiply(weight, staleness_rounds) * np.asarray(update_norm_sq, dtype=np.float64))
    marginal = 3.0 * value * np.asarray(bandwidth_hz) / np.multiply(parameters, bits_per_entry)
    log_base = np.log(2.0) if variant == "corrected" else 1.0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        water_level = np.clip(marginal / (backlog * log_base) - 1.0 / gain, 0.0, cap)
    power = np.where(backlog <= 0, cap, water_level)
    return np.where((value <= 0) | (contact <= 0) | (gain <= 0), 0.0, power)


def kept_entries(
    power_watts: ArrayLike,
    *,
    contact_s: ArrayLike,
    gain_per_watt: ArrayLike,
    bandwidth_hz: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    statistics_bits: ArrayLike = 0.0,
) -> Ints:
    """k = min(floor(tau A / b), s): use the whole capacity of the contact (Proposition 1)."""
    power, contact, gain = _floats(power_watts, contact_s, gain_per_watt)
    rate_bps = np.asarray(bandwidth_hz) * np.log1p(power * gain) / np.log(2.0)
    capacity_bits = np.maximum(contact, 0.0) * rate_bps - np.asarray(statistics_bits)
    fits = np.maximum(capacity_bits, 0.0) / np.asarray(bits_per_entry)
    # At the cap the capacity is exactly s b; rounding must not drop the last entry.
    slack = 1e-12 * np.asarray(parameters, dtype=np.float64)
    return np.asarray(np.minimum(np.floor(fits + slack), parameters), dtype=np.int64)


def objective(
    power_watts: ArrayLike,
    *,
    contact_s: ArrayLike,
    gain_per_watt: ArrayLike,
    staleness_rounds: ArrayLike,
    update_norm_sq: ArrayLike,
    backlog_joules: ArrayLike,
    weight: ArrayLike,
    bandwidth_hz: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
) -> Floats:
    """The objective of P3 without its constant 5 V theta |x|^2, for k = tau A / b."""
    power, contact, gain = _floats(power_watts, contact_s, gain_per_watt)
    value = np.multiply(weight, staleness_rounds) * np.asarray(update_norm_sq, dtype=np.float64)
    kept = contact * np.asarray(bandwidth_hz) * np.log1p(power * gain) / np.log(2.0) / np.asarray(bits_per_entry)
    penalty = -3.0 * value * kept / np.asarray(parameters)
    return np.asarray(penalty + contact * power * np.asarray(backlog_joules), dtype=np.float64)


def _floats(*values: ArrayLike) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    return tuple(np.asarray(value, dtype=np.float64) for value in values)
