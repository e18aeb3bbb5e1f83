"""AFL-Spar: Algorithm 1 with the entries that fit, at the power of a simple energy rule."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import least_joules, power_and_allowance, send_top_k


@dataclass(frozen=True)
class AflSpar(Scheme):
    """AFL-Spar: asynchronous with top-k and error feedback, without a controller."""

    energy_rule: EnergyRule = "greedy"
    name: str = "afl-spar"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """As many entries as fit at the power of the rule."""
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_top_k(encounter, link, power_watts, allowance_joules)

    def least_joules(self, link: Link) -> float:
        """That of one entry."""
        return least_joules(self.energy_rule, link, link.statistics_bits + link.bits_per_entry)

    def any_length(self) -> bool:
        """Only a pace depends on how many rounds there are."""
        return self.energy_rule != "paced"
