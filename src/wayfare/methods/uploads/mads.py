"""MADS, the paper's own upload rule: Propositions 1 and 2 on a virtual energy queue (Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from wayfare.control.auto_weight import fitting_power_watts
from wayfare.control.closed_form import optimal_power_watts
from wayfare.methods.encounter import Encounter, EnergyRule, Upload
from wayfare.methods.parts import UploadRule
from wayfare.methods.uploads.sending import send_top_k
from wayfare.radio import Link
from wayfare.scenario.model import Control


@dataclass(frozen=True)
class Mads(UploadRule):
    """MADS: power by drift plus penalty on an energy queue, and as many entries as that power gets through."""

    control: Control = field(default_factory=Control)
    energy_rule: EnergyRule = "queue"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Proposition 2 for the power, Proposition 1 for the entries."""
        if self.control.weight == "auto":
            return self._decide_by_itself(encounter, link)
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

    def _decide_by_itself(self, encounter: Encounter, link: Link) -> Upload:
        """Proposition 2 at the price that uses up the budget."""
        wanted = self.demand(encounter, link)
        left_joules = encounter.left_joules
        if wanted is None:
            return send_top_k(encounter, link, 0.0)
        power_watts = fitting_power_watts(
            wanted, encounter.experience, left_joules=left_joules, round_=encounter.round, rounds=encounter.rounds
        )
        return send_top_k(encounter, link, power_watts, left_joules)
