"""The bound as a function of speed, contact time or inter-contact time, with Monte Carlo dots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from wayfare.arrays import Floats
from wayfare.streams import FLEET, Stream, generator
from wayfare.theory.bounds import BoundVariant, kept_share, lemma_2_staleness, mobility_coefficient
from wayfare.theory.montecarlo import algorithm_1, constant_gradients, draw_contacts

Parameter: TypeAlias = Literal["speed", "contact", "inter-contact"]
VARIANTS: tuple[BoundVariant, ...] = ("printed", "corrected", "sharp")

# The Monte Carlo represents the model by this many entries, and the fleet by this many devices.
_ENTRIES, _DEVICES = 128, 20
_MIN_ROUNDS, _MAX_ROUNDS = 800, 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The inputs of the bound; the defaults are the paper's."""

    contact_s: float = 4.0
    inter_contact_s: float = 100.0
    contact_m: float = 132.0  # C
    inter_contact_m: float = 3000.0  # Lambda
    rate_bps: float = 15e6
    round_s: float = 10.0
    parameters: int = 6_568_650
    value_bits: int = 32

    @property
    def bits_per_entry(self) -> float:
        """b = u + log2 s, in bits."""
        return self.value_bits + math.log2(self.parameters)

    def times_s(self, parameter: Parameter, values: Floats) -> tuple[Floats, Floats]:
        """Contact and inter-contact times, in seconds, at values of a parameter."""
        if parameter == "speed":
            return self.contact_m / values, self.inter_contact_m / values
        if parameter == "contact":
            return values, np.full_like(values, self.inter_contact_s)
        return np.full_like(values, self.contact_s), values


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One variant of the bound over the values of the parameter."""

    variant: BoundVariant
    factor: Floats  # of Theorem 2
    sparsification_error: Floats  # 1 - gamma, Lemma 3
    staleness_square: Floats  # Theta, Lemma 2
    best: float  # the value that minimises the factor
    best_factor: float
    inside: bool  # whether the minimum is inside the range


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A Monte Carlo run of Algorithm 1 with drawn contacts and constant gradients."""

    at: float
    divergence: float  # mean |v - w_n|^2 / (eta^2 G^2), which the factor bounds
    sparsification_error: float
    staleness_square: float  # at contacts


def curves(parameter: Parameter, setting: Setting, values: Floats) -> list[Curve]:
    """Every variant of the bound. Variants that distinguish countings use the simulator's."""
    contact_s, inter_contact_s = setting.times_s(parameter, values)
    found = []
    for variant in VARIANTS:
        gamma = kept_share(setting.rate_bps, contact_s, setting.parameters, setting.bits_per_entry, variant)
        theta = lemma_2_staleness(contact_s, inter_contact_s, setting.round_s, counting="start", variant=variant)
        factor = mobility_coefficient(gamma, variant) * theta
        best = int(factor.argmin())
        found.append(
            Curve(
                variant=variant,
                factor=factor,
                sparsification_error=1.0 - gamma,
                staleness_square=theta,
                best=float(values[best]),
                best_factor=float(factor[best]),
                inside=0 < best < len(values) - 1,
            )
        )
    return found


def dots(parameter: Parameter, setting: Setting, values: Sequence[float], seed: int) -> Iterator[Dot]:
    """Run the Monte Carlo at each value, lazily."""
    for index, value in enumerate(values):
        rng = generator(seed, Stream.MONTE_CARLO, FLEET + index)
        contact_s, inter_contact_s = (float(time_s[0]) for time_s in setting.times_s(parameter, np.array([value])))
        cycle_rounds = (contact_s + inter_contact_s) / setting.round_s
        rounds = int(np.clip(20 * cycle_rounds, _MIN_ROUNDS, _MAX_ROUNDS))
        contacts = draw_contacts(
            rng,
            contact_s=contact_s,
            inter_contact_s=inter_contact_s,
            round_s=setting.round_s,
            rounds=rounds,
            devices=_DEVICES,
        )
        entries_per_s = setting.rate_bps * _ENTRIES / (setting.parameters * setting.bits_per_entry)
        problem = constant_gradients(rng, _DEVICES, _ENTRIES)
        trial = algorithm_1(problem, contacts, entries_per_s=entries_per_s, learning_rate=1.0, rng=rng)
        settled = slice(rounds // 3, None)
        yield Dot(
            at=value,
            divergence=float(trial.divergence[settled].mean()) / trial.largest_gradient_sq,
            sparsification_error=1.0 - trial.kept_share,
            staleness_square=trial.staleness_at_contact_sq,
        )
