"""Class statistics as an upload: sums that add up exactly, from which the server makes a classifier.

Sums are exact in any order and from any subset of contacts, whatever classes a device holds: no drift, no staleness.
`wayfare.learning.sums` has the layout of the vector and the classifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.control.auto_weight import Wanted
from wayfare.errors import InvariantError
from wayfare.methods.collection import Collection
from wayfare.methods.encounter import NOTHING, Encounter, EnergyRule, Upload
from wayfare.methods.parts import Arrival, LocalRule, Method, ServerRule, ServerTerms, State, UploadRule
from wayfare.methods.uploads import power_and_allowance
from wayfare.radio import Link

if TYPE_CHECKING:
    from torch import Tensor

# `codec.values.WHOLE`: values are exact whole numbers.
WHOLE_VALUES = 0
# `codec.whole.MAX_WHOLE`: single precision adds whole numbers below this exactly.
MAX_WHOLE = 1 << 24

# Rounding of the power that just suffices.
_SLACK = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class ClassStatistics(Collection, LocalRule):
    """Collect counts, sums and sums of products by class; optionally, then train the classifier that they give."""

    def collects(self) -> Collection | None:
        return self

    def objection(self, method: Method) -> str | None:
        """Sums must arrive exactly once and without a weight."""
        if not isinstance(method.server, AddSums):
            return "statistics need the server rule add-sums"
        if not method.memory.conserves:
            return "statistics need a memory rule that keeps everything that was not sent"
        if method.guard is not None:
            return "a guard scales uploads, and statistics must arrive as they are"
        if method.peers is not None:
            return "relays do not carry statistics"
        return None


@dataclass(frozen=True)
class SumsFirst(UploadRule):
    """Send statistics until none are left, then follow another rule; without one, send nothing more."""

    energy_rule: EnergyRule = "paced"
    then: UploadRule | None = None

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """As many entries as fit at the power of the energy rule, or all at the least power that suffices.

        `device.contact` encodes them and finds how many fit.
        """
        if not encounter.sums_left:
            return NOTHING if self.then is None else self.then.decide(encounter, link)
        power_watts, allowance_joules = power_and_allowance(self._sums_rule, encounter, link)
        if power_watts <= 0 or allowance_joules <= 0:
            return NOTHING
        enough_watts = link.power_watts(encounter.sums_bits * _SLACK, encounter.contact_s, encounter.gain_per_watt)
        power_watts = min(power_watts, enough_watts)
        airtime_s = min(encounter.contact_s, allowance_joules / power_watts)
        return Upload(
            entries=encounter.sums_left,
            bits=airtime_s * link.rate_bps(power_watts, encounter.gain_per_watt),
            power_watts=power_watts,
            energy_joules=power_watts * airtime_s,
            value_bits=WHOLE_VALUES,
            max_joules=allowance_joules,
        )

    @property
    def _sums_rule(self) -> EnergyRule:
        """A controller's queue is for what is learned; statistics are then paced."""
        return "paced" if self.energy_rule == "queue" else self.energy_rule

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        return None if self.then is None else self.then.demand(encounter, link)


@dataclass(frozen=True)
class AddSums(ServerRule):
    """Add statistics as they are, and the trained entries after them as Algorithm 1 does, divided by N."""

    takes_pieces = True

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        from wayfare.sparsify import Sparse, subtract

        model = model.clone()
        for arrival in arrivals:
            sent = arrival.sent
            shares = (sent.indices < terms.sums).to(model.dtype)
            shares = shares + (1 - shares) / terms.devices
            subtract(model, Sparse(sent.indices, shares * sent.values), 1.0)
        if terms.sums and float(model[: terms.sums].abs().max()) >= MAX_WHOLE:
            raise InvariantError(f"a sum reached {MAX_WHOLE} steps and is no longer exact; use a larger coarseness")
        return model, state

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        total = -terms.devices * model.double()
        total[: terms.sums] = -model[: terms.sums].double()
        return total
