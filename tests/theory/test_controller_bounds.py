"""Theorem 3 and the two propositions: the online controller against the optimum with a known future."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from wayfare.arrays import Floats
from wayfare.control.closed_form import full_update_power_watts, objective, optimal_power_watts
from wayfare.control.queue import spend
from wayfare.streams import FLEET, Stream, generator
from wayfare.theory import bounds

B_HZ, S, BITS, MAX_W = 15e3, 84_618, 48.37, 0.2
ROUNDS, DEVICES = 120, 3


@dataclass(frozen=True)
class Instance:
    """Contacts of a few devices whose staleness and norms do not depend on decisions, as Theorem 3 has it."""

    met: Floats
    contact_s: Floats
    gain_per_watt: Floats
    value: Floats  # theta |x|^2
    budget_joules: Floats

    @property
    def cap_watts(self) -> Floats:
        return full_update_power_watts(
            contact_s=self.contact_s,
            gain_per_watt=self.gain_per_watt,
            bandwidth_hz=B_HZ,
            parameters=S,
            bits_per_entry=BITS,
            max_power_watts=MAX_W,
        )

    def penalty(self, power: Floats) -> Floats:
        """U = zeta theta (5 - 3 k/s) |x|^2, with k a real number as in P3."""
        kept = self.contact_s * B_HZ * np.log2(1 + power * self.gain_per_watt) / BITS / S
        return self.met * self.value * (5 - 3 * np.minimum(kept, 1.0))

    def energy_joules(self, power: Floats) -> Floats:
        return self.met * self.contact_s * power

    def online(self, weight: float) -> tuple[Floats, Floats]:
        """Powers of P1 round by round, and the backlog at the end."""
        power, backlog = np.zeros((ROUNDS, DEVICES)), np.zeros(DEVICES)
        for r in range(ROUNDS):
            chosen = optimal_power_watts(
                contact_s=self.contact_s[r],
                gain_per_watt=self.gain_per_watt[r],
                staleness_rounds=1,
                update_norm_sq=self.value[r],
                backlog_joules=backlog,
                weight=weight,
                bandwidth_hz=B_HZ,
                parameters=S,
                bits_per_entry=BITS,
                max_power_watts=MAX_W,
            )
            power[r] = chosen * self.met[r]
            used = self.met[r] * self.contact_s[r] * power[r]
            backlog = np.array([spend(*each) for each in zip(backlog, used, self.budget_joules / ROUNDS, strict=True)])
        return power, backlog

    def offline(self) -> Floats:
        """P0 with the future known: convex, so one price for each device, found by bisection."""
        level = 3 * self.value * B_HZ / (S * BITS * np.log(2))
        low, high = np.full(DEVICES, -40.0), np.full(DEVICES, 40.0)
        for _ in range(100):
            middle = (low + high) / 2
            power = np.clip(level * np.exp(-middle) - 1 / self.gain_per_watt, 0, self.cap_watts)
            over = self.energy_joules(power).sum(axis=0) > self.budget_joules
            low, high = np.where(over, middle, low), np.where(over, high, middle)
        return np.clip(level * np.exp(-high) - 1 / self.gain_per_watt, 0, self.cap_watts) * self.met


def instance(number: int) -> Instance:
    rng = generator(number, Stream.MONTE_CARLO, FLEET)
    shape = (ROUNDS, DEVICES)
    return Instance(
        met=(rng.random(shape) < 0.2).astype(np.float64),
        contact_s=rng.exponential(6.0, shape),
        gain_per_watt=10 ** rng.uniform(3, 7, shape),
        value=10 ** rng.uniform(1, 4, shape),
        budget_joules=rng.uniform(2, 8, DEVICES),
    )


def swing_sq(found: Instance, *powers: Floats) -> float:
    """Phi, over both solutions."""
    pace = found.budget_joules / ROUNDS
    swings = [np.abs(found.energy_joules(power) - pace).max(axis=0) for power in powers]
    return float(np.square(np.max(swings, axis=0)).sum())


@pytest.mark.parametrize("weight", [1e-5, 1e-3, 1e-1, 10.0])
@pytest.mark.parametrize("number", range(5))
def test_corrected_theorem_3_holds(number: int, weight: float) -> None:
    found = instance(number)
    (online, backlog), offline = found.online(weight), found.offline()
    phi = swing_sq(found, online, offline)
    gap = found.penalty(online).sum() - found.penalty(offline).sum()
    assert gap <= bounds.theorem_3_objective_gap(ROUNDS, phi, weight)
    spent = found.energy_joules(online).sum(axis=0)
    limit = bounds.theorem_3_energy_joules(
        budget_joules=found.budget_joules,
        rounds=ROUNDS,
        energy_swing_sq=phi,
        weight=weight,
        offline_objective=found.penalty(offline).sum(),
    )
    # The last backlog is the bound that says something.
    assert (spent <= found.budget_joules + backlog + 1e-9).all()
    assert (found.budget_joules + backlog <= limit).all()


def test_printed_theorem_3_bounds_the_wrong_difference_and_fails_for_energy() -> None:
    found, weight = instance(0), 1e3
    (online, _), offline = found.online(weight), found.offline()
    phi = swing_sq(found, online, offline)
    best = found.penalty(offline).sum()
    printed = bounds.theorem_3_energy_joules(
        budget_joules=found.budget_joules,
        rounds=ROUNDS,
        energy_swing_sq=phi,
        weight=weight,
        offline_objective=best,
        variant="printed",
    )
    # The root of a negative number: no bound at all, while the budget is in fact exceeded.
    assert np.isnan(printed).all()
    assert (found.energy_joules(online).sum(axis=0) > found.budget_joules).any()
    # Just before the root vanishes the printed bound is a number, and too small.
    edge = ROUNDS**2 * phi / best * (1 - 1e-9)
    at_edge = found.online(edge)[0]
    limit = bounds.theorem_3_energy_joules(
        budget_joules=found.budget_joules,
        rounds=ROUNDS,
        energy_swing_sq=phi,
        weight=edge,
        offline_objective=best,
        variant="printed",
    )
    assert (found.energy_joules(at_edge).sum(axis=0) > limit).any()
    # With a large weight the online solution spends more than the budget and gets below the offline one by more than
    # the printed R^2 Phi / V, which goes to 0.
    difference = found.penalty(offline).sum() - found.penalty(online).sum()
    assert difference > bounds.theorem_3_objective_gap(ROUNDS, phi, weight, "printed")


def test_theorem_3_says_less_than_the_largest_energy_of_a_round() -> None:
    """sqrt(R^2 Phi) is at least R phi, and R phi is what a device can exceed its budget by in any case."""
    found = instance(2)
    (online, _), offline = found.online(1e-3), found.offline()
    phi = swing_sq(found, online, offline)
    trivial = ROUNDS * np.abs(found.energy_joules(online) - found.budget_joules / ROUNDS).max(axis=0)
    assert (np.sqrt(ROUNDS**2 * phi) >= trivial).all()


def test_proposition_1_is_tight_where_energy_has_a_price_and_only_there() -> None:
    """P2 by brute force over powers and entries."""
    rng = generator(3, Stream.MONTE_CARLO, FLEET)
    for _ in range(20):
        contact_s, gain, value = rng.exponential(6.0), 10 ** rng.uniform(3, 6), 10 ** rng.uniform(2, 4)
        power = np.linspace(1e-5, MAX_W, 2000)
        capacity = contact_s * B_HZ * np.log2(1 + power * gain) / BITS / S
        kept = np.linspace(0, 1, 400)[:, None]
        feasible = kept <= np.minimum(capacity, 1.0)
        energy = power * kept * S * BITS / (B_HZ * np.log2(1 + power * gain))
        for backlog in (0.0, 2.0):
            score = np.where(feasible, 1e-3 * value * (5 - 3 * kept) + energy * backlog, np.inf)
            k, p = np.unravel_index(score.argmin(), score.shape)
            if backlog > 0:
                # One step of the grid of entries less than the capacity at the best power, or less.
                assert capacity[p] - kept[k, 0] <= 1 / 399 + np.diff(capacity, prepend=0.0)[p] + 1e-9
            else:
                # Without a price many powers send the same entries, and none is better.
                assert np.isclose(score[k], score.min()).sum() > 1 or capacity.max() < 1


def test_proposition_1_as_printed_can_ask_for_more_entries_than_there_are() -> None:
    kwargs = {
        "contact_s": 100.0,
        "gain_per_watt": 1e6,
        "bandwidth_hz": B_HZ,
        "parameters": S,
        "bits_per_entry": BITS,
    }
    assert bounds.proposition_1_entries(MAX_W, variant="printed", **kwargs) > S  # type: ignore[arg-type]
    assert bounds.proposition_1_entries(MAX_W, **kwargs) == S  # type: ignore[arg-type]
    short = {**kwargs, "contact_s": 1.23}
    printed = bounds.proposition_1_entries(MAX_W, variant="printed", **short)  # type: ignore[arg-type]
    assert bounds.proposition_1_entries(MAX_W, **short) == np.floor(printed)  # type: ignore[arg-type]


def test_printed_proposition_2_is_not_the_minimum_of_p3() -> None:
    kwargs = {
        "contact_s": 6.0,
        "gain_per_watt": 1e5,
        "staleness_rounds": 10,
        "update_norm_sq": 40.0,
        "backlog_joules": 1.0,
        "weight": 5e-3,
        "bandwidth_hz": B_HZ,
        "parameters": S,
        "bits_per_entry": BITS,
    }
    best, printed = (
        bounds.proposition_2_power_watts(max_power_watts=MAX_W, variant=variant, **kwargs)  # type: ignore[arg-type]
        for variant in ("corrected", "printed")
    )
    grid = objective(np.linspace(1e-4, MAX_W, 20_000), **kwargs)  # type: ignore[arg-type]
    assert objective(best, **kwargs) <= grid.min() + 1e-12  # type: ignore[arg-type]
    assert objective(printed, **kwargs) > grid.min() + 1e-5  # type: ignore[arg-type]
