"""Class statistics as an upload: sums that add up exactly, from which the server makes a classifier.

Sums are exact in any order and from any subset of contacts, whatever classes a device holds: no drift, no staleness.
`wayfare.learning.sums` has the layout of the vector and the classifiers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from wayfare.control.auto_weight import Wanted
from wayfare.errors import InputError, ScenarioError
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
# Less is not worth a contact: about the counts and sums of ten classes and a thousand features.
_LEAST_BITS = 50_000


@dataclass(frozen=True, kw_only=True)
class ClassStatistics(Collection, LocalRule):
    """Collect counts, sums and sums of products by class; optionally, then train the classifier that they give."""

    def collects(self) -> Collection | None:
        return self

    def objection(self, method: Method) -> str | None:
        """Sums must arrive exactly once and without a weight."""
        if not isinstance(method.server, AddSums):
            return "statistics need the server rule add-sums"
        if not isinstance(method.upload, SumsFirst):
            return "statistics must arrive without rounding, so they need the upload rule sums-first"
        if not self.trains_between_contacts:
            return "class-statistics collects before the first contact, so trains_between_contacts must be true"
        if self.trains != (method.upload.then is not None):
            return "class-statistics has trains = true exactly if sums-first has a rule for what is trained (then)"
        if not self.trains and (unused := self._of_training(method.server)):
            return f"{unused} concerns training, and nothing is trained after the statistics"
        if not method.memory.conserves:
            return "statistics need a memory rule that keeps everything that was not sent"
        if method.guard is not None:
            return "a guard scales uploads, and statistics must arrive as they are"
        if method.peers is not None:
            return "relays do not carry statistics"
        return None

    def _of_training(self, server: AddSums) -> str | None:
        """A setting that has an effect only on training."""
        if server.step != AddSums.step:
            return "the step of add-sums"
        names = ["sharpness", *(each.name for each in fields(LocalRule))]
        return next((name for name in names if getattr(self, name) != getattr(ClassStatistics, name)), None)


@dataclass(frozen=True)
class SumsFirst(UploadRule):
    """Send statistics until none are left, then follow another rule; without one, send nothing more.

    Slow uploads cost less energy. So a device uses the least power that delivers its statistics by a share ``by`` of
    the run, in the contact time that it expects from its own past; at most the power of the energy rule.
    """

    energy_rule: EnergyRule = "paced"
    then: UploadRule | None = None
    by: float = 0.1

    def __post_init__(self) -> None:
        if type(self.by) not in (int, float) or not 0 <= self.by <= 1:
            raise ScenarioError("by", self.by, "must be 0 to 1")
        if not isinstance(self.then, UploadRule | None):
            raise ScenarioError("then", self.then, "must be an upload rule")

    def objection(self, method: Method) -> str | None:
        if not method.local.collects():
            return "sums-first sends statistics; add the local rule class-statistics"
        return super().objection(method)

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """All that is left, at the power for this contact; `device.contact` encodes it and finds how much fits."""
        if not encounter.sums_left:
            return NOTHING if self.then is None else self.then.decide(encounter, link)
        power_watts, allowance_joules = power_and_allowance(self._sums_rule, encounter, link)
        if power_watts <= 0 or allowance_joules <= 0:
            return NOTHING
        rounds_left = max(self.by * encounter.rounds - encounter.round, 0.0)
        expected_s = encounter.contact_s + encounter.met_s / encounter.round * rounds_left
        due_bits = encounter.sums_bits * encounter.contact_s / expected_s
        due_bits = max(due_bits, min(encounter.sums_bits, _LEAST_BITS)) * _SLACK
        enough_watts = link.power_watts(due_bits, encounter.contact_s, encounter.gain_per_watt)
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
    """Add statistics as they are. Trained entries after them follow Algorithm 1, from the classifier of the sums on.

    w <- w - (step/N) sum of S(x) + C(sums after) - C(sums before): the classifier C of the statistics, plus everything
    that devices learned, whichever comes first.
    """

    step: float = 1.0

    takes_pieces = True

    def __post_init__(self) -> None:
        if type(self.step) not in (int, float) or not 0 < self.step < math.inf:
            raise ScenarioError("step", self.step, "must be a finite number above 0")

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        from wayfare.sparsify import Sparse, subtract

        if not any(len(arrival.sent) for arrival in arrivals):
            return model, state
        before, model, added = model[: terms.sums], model.clone(), False
        for arrival in arrivals:
            indices, values = arrival.sent.indices, arrival.sent.values
            sums = int((indices < terms.sums).sum())
            subtract(model, Sparse(indices[:sums], values[:sums]), 1.0)
            subtract(model, Sparse(indices[sums:], values[sums:]), self.step / terms.devices)
            added = added or sums > 0
        after = model[: terms.sums]
        if added and float(after.abs().max()) >= MAX_WHOLE:
            raise InputError(
                f"class-statistics: a sum of the fleet reached {MAX_WHOLE:,} steps and is no longer exact; set scale "
                "to the typical size of a feature, or a larger coarseness"
            )
        if added and terms.classifier is not None:
            model[terms.sums :] += terms.classifier(after) - terms.classifier(before)
        return model, state

    def taken(self, model: Tensor, state: State, terms: ServerTerms) -> Tensor | None:
        total, sums = -model.double(), model[: terms.sums]
        if terms.classifier is not None:
            total[terms.sums :] += terms.classifier(sums)
        total[terms.sums :] *= terms.devices / self.step
        return total
