"""Optimal: the paper's ideal benchmark, full power and no budget."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import send_top_k


@dataclass(frozen=True)
class Optimal(Scheme):
    """Optimal: full power in every contact whatever it costs, an ideal to measure against."""

    name: str = "optimal"
    energy_rule: EnergyRule = "unlimited"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """All that the contact holds."""
        return send_top_k(encounter, link, link.max_power_watts)

    def any_length(self) -> bool:
        """There is no budget to pace."""
        return True
