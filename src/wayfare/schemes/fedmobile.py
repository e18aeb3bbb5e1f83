"""FedMobile: AFL, and devices that meet carry updates and models for each other."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import least_joules, power_and_allowance, send_dense


@dataclass(frozen=True)
class FedMobile(Scheme):
    """FedMobile (Bian and Xu 2022): AFL, and devices that meet carry updates and newer models for each other."""

    energy_rule: EnergyRule = "greedy"
    name: str = "fedmobile"
    forecasts = False
    relays: bool = True

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Everything at the power of the rule, to the server as to another device."""
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_dense(encounter, link, power_watts, allowance_joules)

    def least_joules(self, link: Link) -> float:
        """That of a whole update."""
        return least_joules(self.energy_rule, link, link.dense_bits)

    def any_length(self) -> bool:
        """Relays are chosen by who meets the server sooner, and after the last round nobody does."""
        return False
