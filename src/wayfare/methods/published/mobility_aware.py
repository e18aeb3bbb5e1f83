"""Mobility-aware selection of contacts, after Ballotta, Dal Fabbro, Perin, Schenato, Rossi, Piro, "VREM-FL:
Mobility-Aware Computation-Scheduling Co-Design for Vehicular Federated Learning", IEEE Trans. Veh. Technol. 74, 2025.

In VREM-FL a vehicle delays its upload until its route reaches a place where a radio map promises a good rate. Devices
here know neither map nor route and judge by their own past contacts. Written from the abstract of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from wayfare.control.auto_weight import Demand, Wanted
from wayfare.methods.encounter import SKIPPED, Encounter, Upload
from wayfare.methods.parts import UploadRule
from wayfare.methods.uploads import send_top_k
from wayfare.radio import Link


@dataclass(frozen=True)
class MobilityAware(UploadRule):
    """Send at full power in the best contacts that the budget pays for, and skip the others.

    A contact is judged by the bits it can carry, its length times its rate. They are modelled as log-normal with the
    mean and spread of the device's experience. A device that skips a contact also skips the download.
    """

    energy_rule = "paced"
    uses_update = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Send if the contact is in the best share (of contact time) that the remaining energy pays for."""
        contacts_left = (encounter.rounds - encounter.round) / encounter.next_contact_rounds
        expected_s = encounter.contact_s + contacts_left * encounter.met_s / encounter.contacts
        share = encounter.left_joules / (link.max_power_watts * expected_s) if expected_s > 0 else 1.0
        seen, bits = encounter.experience, _bits(encounter, link)
        if 0 < share < 1 and bits > 0 and seen.usable_joules > 0:
            spread = math.sqrt(seen.log_worth_squares / seen.usable_joules)
            if math.log(bits) < seen.log_worth_mean - spread * NormalDist().inv_cdf(share):
                return SKIPPED
        return send_top_k(encounter, link, link.max_power_watts, encounter.left_joules)

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        """Record the bits of a contact as its worth, weighted by the energy that it can use."""
        if _bits(encounter, link) <= 0:
            return None
        power_watts, inverse_gain_watts = link.max_power_watts, 1 / encounter.gain_per_watt
        return Demand(
            contact_s=encounter.contact_s,
            inverse_gain_watts=inverse_gain_watts,
            full_power_watts=power_watts,
            level_watts=_bits(encounter, link) * (power_watts + inverse_gain_watts),
        )


def _bits(encounter: Encounter, link: Link) -> float:
    return encounter.contact_s * link.rate_bps(link.max_power_watts, encounter.gain_per_watt)
