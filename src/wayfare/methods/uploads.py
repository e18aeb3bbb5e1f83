"""Upload rules: how many entries a device sends in a contact, and with what power.

There are two ways to use a contact: as many of the largest entries as fit, or everything or nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wayfare.control.auto_weight import fitting_power_watts
from wayfare.control.closed_form import kept_entries, optimal_power_watts
from wayfare.methods.encounter import NOTHING, SKIPPED, Encounter, EnergyRule, Upload
from wayfare.methods.parts import UploadRule
from wayfare.radio import Link
from wayfare.scenario.model import Control

MOST_BPS_PER_HZ = 60.0
"""No radio has a better rate: it would take a signal 180 dB above the noise."""


def send_top_k(encounter: Encounter, link: Link, power_watts: float, allowance_joules: float = math.inf) -> Upload:
    """As many entries as time, power and an energy allowance let through: k = floor(tau A / b) (Proposition 1)."""
    if power_watts <= 0 or allowance_joules <= 0:
        return NOTHING
    airtime_s = min(encounter.contact_s, allowance_joules / power_watts)
    entries = int(
        kept_entries(
            power_watts,
            contact_s=airtime_s,
            gain_per_watt=encounter.gain_per_watt,
            bandwidth_hz=link.bandwidth_hz,
            parameters=link.parameters,
            bits_per_entry=link.bits_per_entry,
            statistics_bits=link.statistics_bits,
        )
    )
    bits = entries * link.bits_per_entry + link.statistics_bits if entries else 0.0
    energy_joules = link.energy_joules(bits, power_watts, encounter.gain_per_watt)
    return Upload(entries=entries, bits=bits, power_watts=power_watts, energy_joules=energy_joules)


def send_dense(
    encounter: Encounter, link: Link, power_watts: float, allowance_joules: float = math.inf, *, fitting: bool = False
) -> Upload:
    """The whole update without indices; cut short by time or energy it is lost, and its energy with it.

    With ``fitting`` an upload that cannot finish is not started.
    """
    if power_watts <= 0 or allowance_joules <= 0:
        return SKIPPED
    airtime_s = min(encounter.contact_s, allowance_joules / power_watts)
    needed_s = link.dense_bits / link.rate_bps(power_watts, encounter.gain_per_watt)
    completes = needed_s <= airtime_s
    if fitting and not completes:
        return SKIPPED
    return Upload(
        entries=link.parameters if completes else 0,
        bits=link.dense_bits if completes else 0.0,
        power_watts=power_watts,
        energy_joules=power_watts * min(needed_s, airtime_s),
        completes=completes,
    )


def least_joules(rule: EnergyRule, link: Link, bits: float) -> float:
    """The least that so many bits cost under a rule, at the best rate that any radio has; 0 if there is no telling.

    Full power has a least: it is on for bits / rate seconds. At a power that falls with what is left there is none.
    """
    if rule != "greedy":
        return 0.0
    return link.max_power_watts * bits / (MOST_BPS_PER_HZ * link.bandwidth_hz)


def power_and_allowance(rule: EnergyRule, encounter: Encounter, link: Link) -> tuple[float, float]:
    """The power of a contact, and the most energy it may use, under a rule that needs no controller.

    - ``unlimited``: full power, no limit.
    - ``greedy``: full power until the budget is gone.
    - ``paced``: what is left of the budget, spread evenly over the contact time still to be expected. The expectation
      is the device's own experience so far, so the rule knows nothing of the future, and the power is nearly constant.
    """
    if rule == "unlimited":
        return link.max_power_watts, math.inf
    left_joules = encounter.left_joules
    if rule == "greedy":
        return link.max_power_watts, left_joules
    if rule == "paced":
        rounds_left = encounter.rounds - encounter.round + 1
        expected_s = max(encounter.met_s / encounter.round * rounds_left, encounter.contact_s)
        return max(min(link.max_power_watts, left_joules / expected_s), 0.0), left_joules
    raise ValueError(f"the rule {rule!r} belongs to a controller")


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


@dataclass(frozen=True)
class Mads(UploadRule):
    """MADS: power by drift plus penalty on an energy queue, and as many entries as that power gets through.

    Propositions 1 and 2 on a virtual energy queue (Algorithm 2 of the paper).
    """

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
