"""`Encounter`, the input of an upload rule, and `Upload`, its decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wayfare.control.auto_weight import NO_EXPERIENCE, Experience
from wayfare.control.rate_distortion import Profile

EnergyRule: TypeAlias = Literal["unlimited", "greedy", "paced", "queue"]
"""How a method spends its budget (docs/schemes.md): ignore it, spend it early, spread it, or follow a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """Everything a device knows when a contact begins. An upload rule decides from this alone."""

    contact_s: float  # the forecast length of the contact
    gain_per_watt: float  # |h|^2 / (B N0)
    staleness_rounds: int  # theta: rounds since the last download, at least 1
    update_norm_sq: float  # |x|^2 of the update
    backlog_joules: float  # q, the virtual energy queue
    spent_joules: float
    budget_joules: float
    round: int
    rounds: int
    met_s: float  # seconds of contact so far, this one included
    experience: Experience = NO_EXPERIENCE  # of the device's contacts so far, this one included
    # Rate-distortion profile of the update, computed on the first call. None if there is no update.
    profile: Callable[[], Profile] | None = field(default=None, compare=False, repr=False)
    device: int = 0
    contacts: int = 1  # so far, this one included
    samples: int | None = None  # held by the device; None if unknown
    # Class statistics that the device has not delivered: entries, and the length of their encoding.
    sums_left: int = 0
    sums_bits: int = 0
    # Position and speed when the contact begins; None if unknown.
    position_m: tuple[float, float] | None = None
    speed_mps: float | None = None

    @property
    def left_joules(self) -> float:
        return self.budget_joules - self.spent_joules

    @property
    def next_contact_rounds(self) -> float:
        """Expected rounds until the next contact: the mean interval so far."""
        return self.round / self.contacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The decision of an upload rule for one contact.

    An incomplete upload costs its energy and changes nothing else: the device keeps its update, its model
    and its staleness. An upload of 0 entries completes: the device sends nothing and downloads the global model.
    """

    entries: int
    bits: float
    power_watts: float
    energy_joules: float
    completes: bool = True
    # Width of a coded value; 0: class statistics, which are whole numbers. The upload then costs the length of its
    # encoding, and entries that do not fit are dropped. None: exact values at the link's cost per entry.
    value_bits: int | None = None
    # For a progressive upload: the most entries to send if the contact outlasts its forecast. Pieces go by falling
    # importance, and those that arrive before the contact ends count. None: all or nothing.
    max_entries: int | None = None
    # Energy limit of a progressive upload.
    max_joules: float = math.inf

    @property
    def airtime_s(self) -> float:
        return self.energy_joules / self.power_watts if self.power_watts > 0 else 0.0


NOTHING = Upload(entries=0, bits=0.0, power_watts=0.0, energy_joules=0.0)
"""The device sends nothing and downloads the global model."""
SKIPPED = Upload(entries=0, bits=0.0, power_watts=0.0, energy_joules=0.0, completes=False)
"""The device ignores the contact."""
