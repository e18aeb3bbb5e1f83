"""Which devices of a fleet count, and how much.

Devices join, leave and return while the fleet runs, so the N of a server rule is not a setting. It is the number of
*active* devices: those of which the server recorded a chunk within the last `active_days`. A name without uploads
costs nothing. The ledger keeps N and the weight of every chunk per version, so that a replay is exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from wayfare.errors import ScenarioError
from wayfare.field.runtime.rules import Latest

DAY_S = 86_400.0
# A fleet starts within this time: devices that join later start from its current model.
_START_S = 3600.0
# A device may claim any number of samples. Its claim counts up to this multiple of the median claim.
_MOST_OF_MEDIAN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The rules by which devices count.

    `outdated_days` is longer than any usual absence. An update against a model that old points somewhere else, so the
    server rejects it, and the device starts from the current model with an empty memory.
    """

    active_days: float = 7.0
    least_devices: int = 1  # N is at least this, so that the first uploads of a new fleet do not count too much
    discount_days: float | None = None  # updates against a model superseded longer ago count less; None: all count
    outdated_days: float = 30.0
    by_samples: bool = False  # weights by the number of samples, as the devices report it
    clock: Callable[[], float] = field(default=time.time, compare=False)

    def __post_init__(self) -> None:
        for name, days in (
            ("active_days", self.active_days),
            ("discount_days", self.discount_days),
            ("outdated_days", self.outdated_days),
        ):
            if days is not None and not 0 < days < math.inf:
                raise ScenarioError(name, days, "must be above 0")
        if self.least_devices < 1:
            raise ScenarioError("least_devices", self.least_devices, "must be at least 1")

    def active(self, devices: Sequence[Latest]) -> list[Latest]:
        """The devices of which a chunk was recorded recently."""
        since_s = self.clock() - self.active_days * DAY_S
        return [device for device in devices if device.delivered_s is not None and device.delivered_s >= since_s]

    def count(self, active: Sequence[Latest]) -> int:
        """N of the server rule."""
        return max(len(active), self.least_devices)

    def weight(self, device: Latest, active: Sequence[Latest], superseded_s: float | None) -> float:
        """The factor of an update against a model that was superseded at a time; None: it is the latest.

        By samples: n_i over the mean of all active devices, so that a rule that divides by N averages over samples.
        """
        weight = self._share_of_samples(device, active) if self.by_samples else 1.0
        if self.discount_days is not None and superseded_s is not None:
            age_days = (self.clock() - superseded_s) / DAY_S
            weight *= min(1.0, self.discount_days / age_days) if age_days > 0 else 1.0
        return weight

    def is_outdated(self, superseded_s: float | None, *, initial: bool = False) -> bool:
        """Whether a model was superseded too long ago; the initial one after an hour, as devices start together."""
        limit_s = _START_S if initial else self.outdated_days * DAY_S
        return superseded_s is not None and self.clock() - superseded_s > limit_s

    def _share_of_samples(self, device: Latest, active: Sequence[Latest]) -> float:
        """1 for a device that reports no number."""
        claims = [each.samples for each in active if each.samples]
        if not device.samples or not claims:
            return 1.0
        most = _MOST_OF_MEDIAN * median(claims)
        return min(device.samples, most) / fmean(min(claim, most) for claim in claims)
