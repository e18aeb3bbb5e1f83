"""A device's account of energy, contact time and experience. It holds no vectors.

The simulator, the field and the planner's rehearsal all keep their accounts with `meet` and `pay`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from wayfare.control import queue
from wayfare.control.auto_weight import NO_EXPERIENCE, Experience, after_contact
from wayfare.control.rate_distortion import Profile
from wayfare.methods.encounter import Encounter
from wayfare.methods.parts import UploadRule
from wayfare.radio import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The numbers that a device keeps between contacts."""

    received_round: int = 0  # kappa: the round of the last download
    budget_joules: float
    spent_joules: float = 0.0
    backlog_joules: float = 0.0  # q at the beginning of `backlog_round`
    backlog_round: int = 1
    met_s: float = 0.0
    contacts: int = 0
    releases: int = 0  # contacts that cost privacy, if the method is private
    experience: Experience = NO_EXPERIENCE

    @property
    def left_joules(self) -> float:
        return self.budget_joules - self.spent_joules


AnyAccount = TypeVar("AnyAccount", bound=Account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A contact as the world describes it when it begins."""

    round: int
    contact_s: float
    gain_per_watt: float
    device: int = 0
    samples: int | None = None
    position_m: tuple[float, float] | None = None
    speed_mps: float | None = None


def meet(
    account: AnyAccount,
    meeting: Meeting,
    upload: UploadRule,
    link: Link,
    *,
    rounds: int,
    update_norm_sq: float,
    staleness_rounds: int,
    sums: tuple[int, int] = (0, 0),
    profile: Callable[[], Profile] | None,
) -> tuple[AnyAccount, Encounter]:
    """Advance the energy queue to this round; return the account and the encounter that the upload rule sees."""
    pace = account.budget_joules / rounds
    # One round's share of the budget counts once, even if the device sends twice in a round.
    idle_rounds = max(meeting.round - account.backlog_round, 0)
    backlog_joules = queue.idle(account.backlog_joules, idle_rounds, pace)
    encounter = Encounter(
        contact_s=meeting.contact_s,
        gain_per_watt=meeting.gain_per_watt,
        staleness_rounds=staleness_rounds,
        update_norm_sq=update_norm_sq,
        backlog_joules=backlog_joules,
        spent_joules=account.spent_joules,
        budget_joules=account.budget_joules,
        round=meeting.round,
        rounds=rounds,
        met_s=account.met_s,
        experience=account.experience,
        profile=profile,
        device=meeting.device,
        contacts=account.contacts,
        samples=meeting.samples,
        sums_left=sums[0],
        sums_bits=sums[1],
        position_m=meeting.position_m,
        speed_mps=meeting.speed_mps,
    )
    experience = after_contact(account.experience, upload.demand(encounter, link))
    now = replace(
        account,
        backlog_joules=backlog_joules,
        backlog_round=max(meeting.round, account.backlog_round),
        experience=experience,
    )
    return now, replace(encounter, experience=experience)


def pay(account: AnyAccount, encounter: Encounter, energy_joules: float) -> AnyAccount:
    """Charge the energy of an upload. All uploads of one round share that round's part of the budget."""
    pace = account.budget_joules / encounter.rounds if account.backlog_round == encounter.round else 0.0
    return replace(
        account,
        spent_joules=account.spent_joules + energy_joules,
        backlog_joules=queue.spend(account.backlog_joules, energy_joules, pace),
        backlog_round=encounter.round + 1,
    )
