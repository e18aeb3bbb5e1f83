"""Every bound of the paper, as printed and as proved (docs/errata.md has the derivations).

All functions work element by element on scalars and arrays. Pass arrays for devices that differ; the theorem for the
fleet is the mean of the result over the devices. ``corrected`` follows the paper's proof. ``sharp``, where it exists,
uses the triangle inequality in place of
|a + b|^2 <= 2 |a|^2 + 2 |b|^2, under the same assumptions.

Symbols: b bits of a kept entry, s parameters, A the rate, c and lambda the mean contact and inter-contact time, delta
the length of a round, eta the learning rate, and L, G^2, sigma^2 the constants of the two assumptions.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from wayfare.arrays import Floats
from wayfare.control.closed_form import Variant, kept_entries, optimal_power_watts
from wayfare.theory.staleness import Counting, staleness_moments

BoundVariant: TypeAlias = Literal["printed", "corrected", "sharp"]

proposition_2_power_watts = optimal_power_watts
"""Proposition 2, equation (15), in watts; ``variant="printed"`` lacks the 1/ln 2."""


def kept_share(
    rate_bps: ArrayLike,
    contact_s: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    variant: BoundVariant = "corrected",
) -> Floats:
    """gamma of Lemma 3. Corrected, it is exactly E[k/s] for k = min(floor(tau A / b), s), tau ~ exp(c).

    gamma = rho (1 - rho^s) / (s (1 - rho)),  rho = exp(-b / (A c));  printed: gamma = rho
    """
    with np.errstate(divide="ignore"):
        y = _float(bits_per_entry) / (_float(rate_bps) * _float(contact_s))
    if variant == "printed":
        return np.exp(-y)
    s = _float(parameters)
    with np.errstate(over="ignore", invalid="ignore"):
        # With an infinite rate everything is kept.
        return np.where(y > 0, -np.expm1(-s * y) / (s * np.expm1(y)), 1.0)


def lemma_1_divergence(
    *,
    staleness_rounds_sq: ArrayLike,
    learning_rate: ArrayLike,
    gradient_sq: ArrayLike,
    kept_fraction: ArrayLike = 0.0,
    update_sq: ArrayLike = 0.0,
    undelivered_sq: ArrayLike = 0.0,
    variant: BoundVariant = "corrected",
) -> Floats:
    """Lemma 1, equation (1): a bound on |v - w_n|^2 of one device, to be averaged over devices.

    printed     2 theta^2 eta^2 G^2 + (5 - 3 k/s) |x|^2, with k and x of the device's last contact
    corrected   6 theta^2 eta^2 G^2 + 3 (1/N) sum_m |e_m + g_m|^2 at the last contact (the sum is ``undelivered_sq``)
    """
    drift = _float(staleness_rounds_sq) * _float(learning_rate) ** 2 * _float(gradient_sq)
    if variant == "printed":
        return 2.0 * drift + (5.0 - 3.0 * _float(kept_fraction)) * _float(update_sq)
    return 6.0 * drift + 3.0 * _float(undelivered_sq)


def theorem_1_gradient(
    *,
    initial_gap: ArrayLike,
    learning_rate: ArrayLike,
    rounds: ArrayLike,
    smoothness: ArrayLike,
    noise_sq: ArrayLike,
    devices: ArrayLike,
    divergence: ArrayLike,
    variant: BoundVariant = "corrected",
) -> Floats:
    """Theorem 1, equation (2): a bound on E |grad F(z)|^2 after R rounds, for eta <= 1 / (2 L).

    printed     4 gap / (eta R) + 4 L^2 D + 4 eta L sigma / N       (the proof has sigma^2)
    corrected   4 gap / (eta R) + 4 L^2 D + 2 eta L sigma^2 / N

    D is Lemma 1 of the same variant, averaged over devices and rounds. The paper groups the rounds of one contact as
    zeta theta (5 - 3 k/s) |x|^2. The factor must then count the rounds *after* the contact, not those before it.
    """
    eta, noise = _float(learning_rate), _float(noise_sq)
    noise = 4.0 * np.sqrt(noise) if variant == "printed" else 2.0 * noise
    start = 4.0 * _float(initial_gap) / (eta * _float(rounds))
    return (
        start + 4.0 * _float(smoothness) ** 2 * _float(divergence) + eta * _float(smoothness) * noise / _float(devices)
    )


def lemma_2_staleness(
    contact_s: ArrayLike,
    inter_contact_s: ArrayLike,
    round_s: ArrayLike,
    *,
    counting: Counting = "overlap",
    variant: BoundVariant = "corrected",
) -> Floats:
    """Lemma 2, equation (3): Theta, a bound on the second moment of staleness.

    printed     1 + pi (a^4 - 3 a^3 + 4 a^2) / (1 - a)^2,  pi = lambda / (lambda + c),  a = exp(-delta / lambda)
    corrected   1 + pi a (3 - a) / (1 - a)^2 for the paper's counting: the second moment of r - kappa^(r-1) over all
                rounds, and at least that over contact rounds. For the simulator's counting, the larger of the two.
    """
    if variant == "printed":
        c, gap = _float(contact_s), _float(inter_contact_s)
        a = np.exp(-_float(round_s) / gap)
        above = gap / (gap + c) * a**2 * (a**2 - 3.0 * a + 4.0) / np.expm1(-_float(round_s) / gap) ** 2
        return np.asarray(1.0 + above)
    moments = staleness_moments(contact_s, inter_contact_s, round_s, counting)
    return np.maximum(moments.before_exchange_square, moments.at_contact_square)


def lemma_3_sparsification_error(
    rate_bps: ArrayLike,
    contact_s: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    variant: BoundVariant = "corrected",
) -> Floats:
    """Lemma 3, equation (4): E |x - S(x)|^2 / |x|^2 <= 1 - gamma; tight if all entries are equal."""
    return 1.0 - kept_share(rate_bps, contact_s, parameters, bits_per_entry, variant)


def lemma_4_memory(
    gamma: ArrayLike, staleness_sq: ArrayLike, learning_rate: ArrayLike, gradient_sq: ArrayLike, *, sharp: bool = False
) -> Floats:
    """Lemma 4 (Appendix E): a bound on E |e|^2. It holds as printed with the corrected gamma and Theta.

    4 (1 - gamma^2) / gamma^2 Theta eta^2 G^2;  sharp: (q / (1 - q))^2 Theta eta^2 G^2 with q = sqrt(1 - gamma)
    """
    g = _float(gamma)
    scale = _float(staleness_sq) * _float(learning_rate) ** 2 * _float(gradient_sq)
    if sharp:
        # 1 - q without cancellation for small gamma.
        q = np.sqrt(1.0 - g)
        return (q * (1.0 + q) / g) ** 2 * scale
    return 4.0 * (1.0 - g) * (1.0 + g) / g**2 * scale


def mobility_coefficient(gamma: ArrayLike, variant: BoundVariant = "corrected") -> Floats:
    """The coefficient of Theta in Theorem 2.

    printed     (16 - 8 gamma - 11 gamma^2 + 6 gamma^3) / gamma^2
    corrected   (24 - 12 gamma^2) / gamma^2
    sharp       6 + 3 / (1 - sqrt(1 - gamma))^2
    """
    g = _float(gamma)
    if variant == "printed":
        return (16.0 - 8.0 * g - 11.0 * g**2 + 6.0 * g**3) / g**2
    if variant == "corrected":
        return (24.0 - 12.0 * g**2) / g**2
    return 6.0 + 3.0 * ((1.0 + np.sqrt(1.0 - g)) / g) ** 2


def mobility_factor(
    *,
    rate_bps: ArrayLike,
    contact_s: ArrayLike,
    inter_contact_s: ArrayLike,
    round_s: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    counting: Counting = "overlap",
    variant: BoundVariant = "corrected",
) -> Floats:
    """The effect of mobility in Theorem 2, Theta times the coefficient: |v - w_n|^2 <= eta^2 G^2 times this."""
    gamma = kept_share(rate_bps, contact_s, parameters, bits_per_entry, variant)
    theta = lemma_2_staleness(contact_s, inter_contact_s, round_s, counting=counting, variant=variant)
    return mobility_coefficient(gamma, variant) * theta


def theorem_2_gradient(
    *,
    initial_gap: ArrayLike,
    smoothness: ArrayLike,
    gradient_sq: ArrayLike,
    noise_sq: ArrayLike,
    devices: ArrayLike,
    rounds: ArrayLike,
    factor: ArrayLike,
    variant: BoundVariant = "corrected",
) -> Floats:
    """Theorem 2, equation (5): a bound on E |grad F(z)|^2 with eta = 1 / (2 L sqrt R).

    8 L gap / sqrt R + 2 sigma / (N sqrt R) + G^2 / R * factor;  corrected: sigma^2 / (N sqrt R)

    ``factor`` is ``mobility_factor`` of the same variant.
    """
    noise, root = _float(noise_sq), np.sqrt(_float(rounds))
    noise = 2.0 * np.sqrt(noise) if variant == "printed" else noise
    start = 8.0 * _float(smoothness) * _float(initial_gap) / root
    return start + noise / (_float(devices) * root) + _float(gradient_sq) * _float(factor) / _float(rounds)


def corollary_1_factor(
    speed_mps: ArrayLike,
    *,
    contact_m: ArrayLike,
    inter_contact_m: ArrayLike,
    rate_bps: ArrayLike,
    round_s: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    counting: Counting = "overlap",
    variant: BoundVariant = "corrected",
) -> Floats:
    """Corollary 1, equation (6): the mobility factor at a speed, with c = C / v and lambda = Lambda / v.

    printed     16 exp(2 b v / (A C)) Theta(v);  corrected: 24 Theta(v) / gamma(v)^2;  sharp: Theorem 2's own factor
    """
    speed = _float(speed_mps)
    contact_s, inter_contact_s = _float(contact_m) / speed, _float(inter_contact_m) / speed
    gamma = kept_share(rate_bps, contact_s, parameters, bits_per_entry, variant)
    theta = lemma_2_staleness(contact_s, inter_contact_s, round_s, counting=counting, variant=variant)
    if variant == "sharp":
        return mobility_coefficient(gamma, variant) * theta
    return (16.0 if variant == "printed" else 24.0) * theta / gamma**2


def theorem_3_objective_gap(
    rounds: ArrayLike, energy_swing_sq: ArrayLike, weight: ArrayLike, variant: BoundVariant = "corrected"
) -> Floats:
    """Theorem 3, equation (10): a bound on the excess of the online sum U over the offline optimum.

    corrected   sum (U_online - U_offline) <= R^2 Phi / (2 V)
    printed     sum (U_offline - U_online) <= R^2 Phi / V, with the wrong sign: P0 is a minimisation

    Phi is the sum over devices of phi^2, where phi is the largest |E - E_con / R| of either solution.
    """
    return _float(rounds) ** 2 * _float(energy_swing_sq) / _float(weight) / (1.0 if variant == "printed" else 2.0)


def theorem_3_energy_joules(
    *,
    budget_joules: ArrayLike,
    rounds: ArrayLike,
    energy_swing_sq: ArrayLike,
    weight: ArrayLike,
    offline_objective: ArrayLike,
    variant: BoundVariant = "corrected",
) -> Floats:
    """Theorem 3, equation (11): a bound on the energy of one device, in joules.

    printed     E_con + sqrt(2 R^2 Phi - 2 V sum U*), which is NaN for large V
    corrected   E_con + sqrt(R^2 Phi + 2 V sum U*);  the useful bound is E_con + q^(R), the backlog at the end
    """
    spread = _float(rounds) ** 2 * _float(energy_swing_sq)
    value = 2.0 * _float(weight) * _float(offline_objective)
    with np.errstate(invalid="ignore"):
        root = np.sqrt(2.0 * spread - value if variant == "printed" else spread + value)
    return _float(budget_joules) + root


def proposition_1_entries(
    power_watts: ArrayLike,
    *,
    contact_s: ArrayLike,
    gain_per_watt: ArrayLike,
    bandwidth_hz: ArrayLike,
    parameters: ArrayLike,
    bits_per_entry: ArrayLike,
    variant: Variant = "corrected",
) -> Floats:
    """Proposition 1, equation (13): k = tau A / b;  corrected: k = min(floor(tau A / b), s)."""
    if variant == "printed":
        rate_bps = _float(bandwidth_hz) * np.log2(1.0 + _float(power_watts) * _float(gain_per_watt))
        return _float(contact_s) * rate_bps / _float(bits_per_entry)
    entries = kept_entries(
        power_watts,
        contact_s=contact_s,
        gain_per_watt=gain_per_watt,
        bandwidth_hz=bandwidth_hz,
        parameters=parameters,
        bits_per_entry=bits_per_entry,
    )
    return entries.astype(np.float64)


def _float(value: ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)
