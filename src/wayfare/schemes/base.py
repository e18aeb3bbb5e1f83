"""What a scheme sees, what it decides, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from wayfare.control.auto_weight import NO_EXPERIENCE, Experience
from wayfare.radio import Link

EnergyRule: TypeAlias = Literal["unlimited", "greedy", "paced", "queue"]
"""What a scheme does with its energy budget (docs/schemes.md): nothing, all of it at once, evenly, or by a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """What a device knows when a contact begins; the scheme decides from this alone."""

    contact_s: float
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
    # Whether devices that meet carry updates and models for each other, by the rules of the scenario's `relays`.
    relays: bool = False

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """The upload of one contact."""
        ...

    def mixing_weight(self, staleness_rounds: int) -> float | None:
        """The share of a device's model in the new global one, w <- (1 - a) w + a w_n; None: updates are added.

        A scheme that mixes sends whole models, all entries or none.
        """
        return None

    def any_length(self) -> bool:
        """Whether a run may be made longer afterwards: no decision looks at how many rounds there are."""
        return False


def mixes_models(scheme: Scheme) -> bool:
    """Whether the server mixes models under a scheme, instead of adding updates; one that looks like a scheme may not
    say."""
    mixing_weight = getattr(scheme, "mixing_weight", None)
    return mixing_weight is not None and mixing_weight(1) is not None
