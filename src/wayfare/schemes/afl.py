"""AFL: Algorithm 1 without sparsification, all or nothing in every contact."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import least_joules, power_and_allowance, send_dense


@dataclass(frozen=True)
class Afl(Scheme):
    """AFL (Avdiukhin and Kasiviswanathan 2021): asynchronous with dense uploads, each all or nothing."""

    energy_rule: EnergyRule = "greedy"
    name: str = "afl"
    forecasts = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """The whole update at the power of the rule."""
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_dense(encounter, link, power_watts, allowance_joules)

    def least_joules(self, link: Link) -> float:
        """That of a whole update."""
        return least_joules(self.energy_rule, link, link.dense_bits)

    def any_length(self) -> bool:
        """Only a pace depends on how many rounds there are."""
        return self.energy_rule != "paced"
