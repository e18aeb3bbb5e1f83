"""MADS-RD: MADS with the rate-distortion curve of the device's own update; it pays for coded bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from wayfare.control.auto_weight import Wanted, fitting_log_price
from wayfare.control.rate_distortion import Curve, Problem, Profile, choose, uniform_profile
from wayfare.methods.encounter import NOTHING, Encounter, Upload
from wayfare.methods.parts import UploadRule, paper_demand
from wayfare.radio import Link
from wayfare.scenario.model import Control

Step: TypeAlias = Literal["curve", "index", "values", "progressive"]
"""How far MADS-RD departs from MADS. Each step adds to the one above it; ``curve`` is the default.

- ``index``: the paper's bound sets the power; indices are coded, values have 32 bits.
- ``values``: values have the width that captures most with the available bits.
- ``curve``: the rate-distortion curve sets the power.
- ``progressive``: entries go in pieces by falling importance, so that a contact may end at any time.
"""
# A contact may outlast its forecast, but hardly by more than this factor.
_MAX_GROWTH = 3


@dataclass(frozen=True)
class MadsRd(UploadRule):
    """MADS-RD: MADS with the rate-distortion curve of the device's own update; indices and values are coded."""

    control: Control = field(default_factory=Control)
    energy_rule = "queue"
    step: Step = "curve"
    uses_profile = True

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """Drift plus penalty on the rate-distortion curve sets the bits; then choose entries and width for them."""
        problem = self._problem(encounter, link)
        left_joules = encounter.left_joules if self.control.weight == "auto" else math.inf
        if problem is None or left_joules <= 0:
            return NOTHING
        log_price = self._log_price(problem, encounter, left_joules)
        bits = problem.bits_at(log_price)
        power_watts = min(problem.power_for(bits), link.max_power_watts)
        profile = self._profile(encounter, link)
        chosen = choose(profile, min(bits, _affordable_bits(encounter, link, power_watts, left_joules)))
        if chosen.entries == 0:
            return NOTHING
        max_entries = None
        if self.step == "progressive":
            worth_it = choose(profile, problem.worthwhile_bits(power_watts, log_price)).entries
            max_entries = min(max(worth_it, chosen.entries), _MAX_GROWTH * chosen.entries, link.parameters)
        return Upload(
            entries=chosen.entries,
            bits=chosen.bits,
            power_watts=power_watts,
            energy_joules=link.energy_joules(chosen.bits, power_watts, encounter.gain_per_watt),
            value_bits=chosen.value_bits,
            max_entries=max_entries,
            max_joules=left_joules,
        )

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        """The contact's rate-distortion problem under the automatic weight; otherwise Proposition 2."""
        return self._problem(encounter, link) if self.control.weight == "auto" else paper_demand(encounter, link)

    def _log_price(self, problem: Problem, encounter: Encounter, left_joules: float) -> float:
        """Log of the price of a joule: q / V, or the price that uses up the budget."""
        if self.control.weight == "auto":
            return fitting_log_price(
                problem, encounter.experience, left_joules=left_joules, round_=encounter.round, rounds=encounter.rounds
            )
        if self.control.weight <= 0:
            return math.inf
        price = encounter.backlog_joules / self.control.weight
        # `math.log` rounds differently.
        return float(np.log(price)) if price > 0 else -math.inf

    def _problem(self, encounter: Encounter, link: Link) -> Problem | None:
        value = 3.0 * encounter.staleness_rounds * encounter.update_norm_sq
        # A diverged update has no finite value.
        if not (encounter.contact_s > 0 and encounter.gain_per_watt > 0 and 0 < value < math.inf):
            return None
        return Problem(
            curve=self._curve(encounter, link),
            value=value,
            contact_s=encounter.contact_s,
            gain_per_watt=encounter.gain_per_watt,
            bandwidth_hz=link.bandwidth_hz,
            max_power_watts=link.max_power_watts,
        )

    def _curve(self, encounter: Encounter, link: Link) -> Curve:
        if self.step in ("index", "values"):
            return uniform_profile(link.parameters, link.statistics_bits).curve
        return self._profile(encounter, link).curve

    def _profile(self, encounter: Encounter, link: Link) -> Profile:
        if encounter.profile is None:
            return uniform_profile(link.parameters, link.statistics_bits)
        seen = encounter.profile()
        return seen.only(32) if self.step == "index" else seen


def _affordable_bits(encounter: Encounter, link: Link, power_watts: float, left_joules: float) -> float:
    if power_watts <= 0:
        return 0.0
    airtime_s = min(encounter.contact_s, left_joules / power_watts)
    return airtime_s * link.rate_bps(power_watts, encounter.gain_per_watt)
