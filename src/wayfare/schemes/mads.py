"""MADS, the paper's own scheme: Propositions 1 and 2 on a virtual energy queue (Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.control.closed_form import optimal_power_watts
from wayfare.radio import Link
from wayfare.scenario.model import Control
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import send_top_k


@dataclass(frozen=True)
class Mads(Scheme):
    """MADS: power by drift plus penalty on an energy queue, and as many entries as that power gets through."""

    control: Control
    name: str = "mads"
    energy_rule: EnergyRule = "queue"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Proposition 2 for the power, Proposition 1 for the entries."""
        power_watts = float(
            optimal_power_watts(
                contact_s=encounter.contact_s,
                gain_per_watt=encounter.gain_per_watt,
                staleness_rounds=encounter.staleness_rounds,
                update_norm_sq=encounter.update_norm_sq,
                backlog_joules=encounter.backlog_joules,
                weight=self.control.weight,
                bandwidth_hz=link.bandwidth_hz,
                parameters=link.parameters,
                bits_per_entry=link.bits_per_entry,
                max_power_watts=link.max_power_watts,
                statistics_bits=link.statistics_bits,
                variant=self.control.variant,
            )
        )
        return send_top_k(encounter, link, power_watts)
