"""What a method sees when a contact begins, and what it decides to do with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wayfare.control.auto_weight import NO_EXPERIENCE, Experience
from wayfare.control.rate_distortion import Profile

EnergyRule: TypeAlias = Literal["unlimited", "greedy", "paced", "queue"]
"""What a method does with its energy budget (docs/schemes.md): nothing, all of it at once, evenly, or by a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """What a device knows when a contact begins; an upload rule decides from this alone."""

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
    # Looks closer at the update itself; the work is done when a rule first asks. None where there is none to look at.
    profile: Callable[[], Profile] | None = field(default=None, compare=False, repr=False)
    device: int = 0
    contacts: int = 1  # so far, this one included
    samples: int | None = None  # that the device holds, where that is known
    # Where the device is when the contact begins, and how fast; None where nobody knows.
    position_m: tuple[float, float] | None = None
    speed_mps: float | None = None

    @property
    def left_joules(self) -> float:
        return self.budget_joules - self.spent_joules

    @property
    def next_contact_rounds(self) -> float:
        """In how many rounds the device expects to meet the server again: the mean of its experience so far."""
        return self.round / self.contacts


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
        return self.energy_joules / self.power_watts if self.power_watts > 0 else 0.0


NOTHING = Upload(entries=0, bits=0.0, power_watts=0.0, energy_joules=0.0)
"""Nothing is sent, and the global model is received."""
SKIPPED = Upload(entries=0, bits=0.0, power_watts=0.0, energy_joules=0.0, completes=False)
"""The contact passes unused."""
