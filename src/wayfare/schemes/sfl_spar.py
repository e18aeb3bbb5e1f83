"""SFL-Spar: synchronous training with sparsification; a device without a contact stands still."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import least_joules, power_and_allowance, send_top_k


@dataclass(frozen=True)
class SflSpar(Scheme):
    """SFL-Spar: trains only in rounds with a contact, uploads with top-k and error feedback."""

    energy_rule: EnergyRule = "greedy"
    name: str = "sfl-spar"
    trains_between_contacts: bool = False

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
