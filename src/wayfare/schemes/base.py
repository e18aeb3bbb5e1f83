"""What a scheme sees, what it decides, and what it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from wayfare.control.auto_weight import NO_EXPERIENCE, Experience, Wanted, demand
from wayfare.control.rate_distortion import Profile
from wayfare.radio import Link
from wayfare.scenario.exchange import Relays

EnergyRule: TypeAlias = Literal["unlimited", "greedy", "paced", "queue"]
"""What a scheme does with its energy budget (docs/schemes.md): nothing, all of it at once, evenly, or by a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """What a device knows when a contact begins; the scheme decides from this alone."""

    contact_s: float  # as far as the device knows: how long the contact will last
    gain_per_watt: float  # |h|^2 / (B N0)
    staleness_rounds: int  # theta: rounds since the last model was received, at least 1
    update_norm_sq: float  # |x|^2 of what there is to send
    backlog_joules: float  # q, the virtual energy queue
    spent_joules: float
    budget_joules: float
    round: int
    rounds: int
    met_s: float  # seconds of contact so far, this one included
    experience: Experience = NO_EXPERIENCE  # of the device's contacts so far, this one included
    # Looks closer at the update itself; the work is done when a scheme first asks. None where there is none to look at.
    profile: Callable[[], Profile] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What a device does with a contact.

    An upload that does not complete burns its energy and changes nothing else: the device keeps its update, its model
    and its staleness. An upload of 0 entries completes: nothing is sent and the global model is received.
    """

    entries: int
    bits: float
    power_watts: float
    energy_joules: float
    completes: bool = True
    # Coded: values have so many bits, and the upload costs what its encoding takes; entries that turn out not to fit
    # are dropped. None: as the link counts, values as they are.
    value_bits: int | None = None
    # Progressive: in pieces by falling importance, so many entries if the contact outlasts its forecast; the pieces
    # that have arrived when it ends count. None: all or nothing.
    entries_if_it_lasts: int | None = None
    # The energy a progressive upload may take at most.
    most_joules: float = math.inf

    @property
    def airtime_s(self) -> float:
        """How long it transmits."""
        return self.energy_joules / self.power_watts if self.power_watts > 0 else 0.0


class Scheme(Protocol):
    """Decides how many entries a device sends in a contact, and with what power. Subclass it, or look like it."""

    name: str
    energy_rule: EnergyRule = "unlimited"
    # Whether a device also trains in rounds without a contact.
    trains_between_contacts: bool = True
    # Whether devices that meet carry updates and models for each other: by the scenario's `relays`, or by these rules.
    relays: bool | Relays = False
    # Whether decisions depend on how long the contact will last; if not, an error of that forecast does no harm.
    forecasts: bool = True

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """The upload of one contact."""
        ...

    def demand(self, encounter: Encounter, link: Link) -> Wanted | None:
        """What a contact would take at the price of a joule, for `control.weight = "auto"`: by Proposition 2.

        The encounter does not know of this contact's part in the experience yet. None if there is nothing to send.
        """
        return paper_demand(encounter, link)

    def mixing_weight(self, staleness_rounds: int) -> float | None:
        """The share of a device's model in the new global one, w <- (1 - a) w + a w_n; None: updates are added.

        A scheme that mixes sends whole models, all entries or none.
        """
        return None

    def least_joules(self, link: Link) -> float:
        """With less energy than this left, a device never brings anything through again, and need not train."""
        return 0.0

    def any_length(self) -> bool:
        """Whether a run may be made longer afterwards: no decision looks at how many rounds there are."""
        return False


def paper_demand(encounter: Encounter, link: Link) -> Wanted | None:
    """What a contact would take by Proposition 2."""
    return demand(
        link,
        contact_s=encounter.contact_s,
        gain_per_watt=encounter.gain_per_watt,
        staleness_rounds=encounter.staleness_rounds,
        update_norm_sq=encounter.update_norm_sq,
    )


def mixes_models(scheme: Scheme) -> bool:
    """Whether the server mixes models under a scheme, instead of adding updates; one that looks like a scheme may not
    say."""
    mixing_weight = getattr(scheme, "mixing_weight", None)
    return mixing_weight is not None and mixing_weight(1) is not None
