"""Upload rules: how many entries a device sends in a contact, and at what power.

`send_top_k` sends as many entries as fit; `send_dense` sends the whole update or fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wayfare.control.auto_weight import fitting_power_watts
from wayfare.control.closed_form import kept_entries, optimal_power_watts
from wayfare.errors import ScenarioError
from wayfare.methods.encounter import NOTHING, SKIPPED, Encounter, EnergyRule, Upload
from wayfare.methods.parts import Method, UploadRule
from wayfare.radio import Link
from wayfare.scenario.model import Control

MAX_BPS_PER_HZ = 60.0
"""An upper limit for any radio: 60 bit/s/Hz needs a signal 180 dB above the noise."""


def send_top_k(encounter: Encounter, link: Link, power_watts: float, allowance_joules: float = math.inf) -> Upload:
    """Send as many entries as time, power and energy allow: k = floor(tau A / b) (Proposition 1)."""
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
    """Send the whole update without indices. If time or energy run out, the upload and its energy are lost.

    With ``fitting``, a device skips uploads that cannot complete.
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


def min_upload_joules(rule: EnergyRule, link: Link, bits: float) -> float:
    """A lower bound on the energy of ``bits``, P bits / (60 B) joules, under the greedy rule; 0 under others.

    The greedy rule always sends at full power. Other rules can lower the power, so no bound above 0 holds.
    """
    if rule != "greedy":
        return 0.0
    return link.max_power_watts * bits / (MAX_BPS_PER_HZ * link.bandwidth_hz)


def power_and_allowance(rule: EnergyRule, encounter: Encounter, link: Link) -> tuple[float, float]:
    """Power and energy limit of one contact under an energy rule without a controller.

    - ``unlimited``: full power, no limit.
    - ``greedy``: full power until the budget is spent.
    - ``paced``: the remaining budget, spread evenly over the expected remaining contact time. The device expects
      contacts as in its own past, so the rule is causal, and the power is nearly constant.
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
    raise _no_controller(rule)


def _no_controller(rule: EnergyRule) -> ScenarioError:
    return ScenarioError("energy_rule", rule, "must be unlimited, greedy or paced; queue needs a controller")


class _WithoutController(UploadRule):
    """Sends at the power of an energy rule, which can be chosen."""

    uses_update = False

    def objection(self, method: Method) -> str | None:
        return str(_no_controller("queue")) if self.energy_rule == "queue" else super().objection(method)

    def is_extendable(self) -> bool:
        return self.energy_rule != "paced"


@dataclass(frozen=True)
class Fitting(_WithoutController):
    """Send as many entries as fit into the contact."""

    energy_rule: EnergyRule = "greedy"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_top_k(encounter, link, power_watts, allowance_joules)

    def min_upload_joules(self, link: Link) -> float:
        return min_upload_joules(self.energy_rule, link, link.statistics_bits + link.bits_per_entry)


@dataclass(frozen=True)
class Whole(_WithoutController):
    """Send the whole update in one contact, all or nothing.

    The paper does not say whether a device starts an upload that cannot complete. By default it does and pays for
    it. With ``fitting`` it skips such contacts, using its forecast as sparse methods do.
    """

    energy_rule: EnergyRule = "greedy"
    fitting: bool = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_dense(encounter, link, power_watts, allowance_joules, fitting=self.fitting)

    def uses_forecast(self) -> bool:
        return self.fitting

    def min_upload_joules(self, link: Link) -> float:
        return min_upload_joules(self.energy_rule, link, link.dense_bits)


@dataclass(frozen=True)
class Mads(UploadRule):
    """MADS: power by drift plus penalty on an energy queue, then as many entries as fit at that power.

    Propositions 1 and 2 on a virtual energy queue (Algorithm 2 of the paper).
    """

    control: Control = field(default_factory=Control)
    energy_rule = "queue"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Power by Proposition 2, entries by Proposition 1."""
        if self.control.weight == "auto":
            return self._decide_automatically(encounter, link)
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

    def _decide_automatically(self, encounter: Encounter, link: Link) -> Upload:
        """Proposition 2 at the price that uses up the budget."""
        wanted = self.demand(encounter, link)
        left_joules = encounter.left_joules
        if wanted is None:
            return send_top_k(encounter, link, 0.0)
        power_watts = fitting_power_watts(
            wanted, encounter.experience, left_joules=left_joules, round_=encounter.round, rounds=encounter.rounds
        )
        return send_top_k(encounter, link, power_watts, left_joules)
