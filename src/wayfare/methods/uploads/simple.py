"""Uploads at the power of a simple energy rule: as many entries as fit, or the whole update or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.methods.encounter import Encounter, EnergyRule, Upload
from wayfare.methods.parts import UploadRule
from wayfare.methods.uploads.sending import least_joules, power_and_allowance, send_dense, send_top_k
from wayfare.radio import Link


@dataclass(frozen=True)
class Fitting(UploadRule):
    """As many entries as fit into the contact."""

    energy_rule: EnergyRule = "greedy"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_top_k(encounter, link, power_watts, allowance_joules)

    def least_joules(self, link: Link) -> float:
        return least_joules(self.energy_rule, link, link.statistics_bits + link.bits_per_entry)

    def any_length(self) -> bool:
        return self.energy_rule != "paced"


@dataclass(frozen=True)
class Whole(UploadRule):
    """The whole update in one contact, all or nothing.

    The paper does not say whether a device starts an upload that cannot finish. By default it does, and pays for it;
    with ``fitting`` it uses its forecast of the contact, as sparse methods do, and skips such contacts.
    """

    energy_rule: EnergyRule = "greedy"
    fitting: bool = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_dense(encounter, link, power_watts, allowance_joules, fitting=self.fitting)

    def uses_forecast(self) -> bool:
        return self.fitting

    def least_joules(self, link: Link) -> float:
        return least_joules(self.energy_rule, link, link.dense_bits)

    def any_length(self) -> bool:
        return self.energy_rule != "paced"
