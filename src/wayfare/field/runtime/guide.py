"""Guides of a device: how far it may train, when it exchanges, and what it expects of the contact.

On the road a device guides itself by its own measurements. With a plan it follows the plan: the same rounds, contact
times and channels as in the simulator.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from wayfare.device import DeviceState
from wayfare.field.runtime.stores import Progress
from wayfare.methods import UploadRule
from wayfare.methods.account import Meeting
from wayfare.radio import Link
from wayfare.simulator.device_side import meeting_at
from wayfare.world import World

# Assumptions before the first measurement: the length and the rate of a contact.
_FIRST_CONTACT_S, _FIRST_RATE_BPS = 5.0, 1e6
_REMEMBERED = 8
# The most local steps after the last model: ten times a usual staleness in the simulator's presets, and 200 times fewer
# than a fast device took in a minute out of range. Not tuned.
MAX_LOCAL_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion(Meeting):
    """A contact to use now."""

    chunk_bytes: int
    lasts_s: float | None = None  # the true length, if a plan gives it


class Guide(Protocol):
    """Guides a device. Guides without measurements need not override the last seven methods."""

    def trains_until(self, progress: Progress, state: DeviceState) -> int:
        """The last round that the trainer may train now."""

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        """The contact to use now, if there is one."""

    def resumes(self, progress: Progress) -> bool:
        """Whether to resume an interrupted exchange. Otherwise the rest of its update is taken back."""

    def is_over(self, progress: Progress) -> bool:
        """Whether there is nothing left to do."""

    def samples(self) -> int | None:
        """The number of samples to report to the server; None: none."""
        return None

    def loss(self) -> float | None:
        """The loss of the local model to report to the server; None: none."""
        return None

    def wait(self, seconds: float) -> None:
        """The server accepts no upload for so many seconds."""
        return

    def in_reach(self) -> None:
        return

    def out_of_reach(self) -> None:
        return

    def measured(self, bits: float, seconds: float) -> None:
        """Report delivered bits and the time they took."""
        return

    def exchanged(self) -> None:
        """Report a complete exchange."""
        return


def chunk_bytes_at(rate_bps: float, airtime_s: float = 0.1) -> int:
    """The size of chunks: at most ``airtime_s`` of airtime, so that a cut costs little, within message limits."""
    return int(min(max(rate_bps * airtime_s / 8, 2 << 10), 512 << 10))


class ByPlan(Guide):
    """Follows the plan of a world: the device's contacts in order."""

    def __init__(self, world: World, device: int, upload: UploadRule) -> None:
        rows = np.flatnonzero(world.meets.device == device)
        self._contacts = [_occasion(world, int(row), upload) for row in rows]

    def trains_until(self, progress: Progress, state: DeviceState) -> int:
        """The round of the next contact; steps after the last are never needed."""
        following = self._following(progress)
        return following.round if following else progress.trained_round

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        following = self._following(progress)
        return None if following is None or progress.trained_round < following.round else following

    def resumes(self, progress: Progress) -> bool:
        """Always: the plan's clock waits for the end of an exchange."""
        return True

    def is_over(self, progress: Progress) -> bool:
        return self._following(progress) is None

    def _following(self, progress: Progress) -> Occasion | None:
        return next((contact for contact in self._contacts if contact.round > progress.finished_round), None)


def _occasion(world: World, row: int, upload: UploadRule) -> Occasion:
    meeting, lasts_s = meeting_at(world, row, upload), float(world.meets.contact_s[row])
    rate_bps = world.link.rate_bps(world.link.max_power_watts, meeting.gain_per_watt)
    return Occasion(**asdict(meeting), chunk_bytes=chunk_bytes_at(rate_bps, lasts_s / 8), lasts_s=lasts_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Positions and velocities of a device and the server, in metres on a plane, from an external source."""

    position_m: tuple[float, float]
    velocity_mps: tuple[float, float]
    server_position_m: tuple[float, float]
    server_velocity_mps: tuple[float, float] = (0.0, 0.0)
    range_m: float = 100.0


def no_sighting() -> None:
    """The default: positions are unknown."""


def no_samples() -> None:
    """The default: the number of samples is unknown."""


def no_loss() -> None:
    """The default: the loss is not reported."""


def seconds_in_range(sighting: Sighting) -> float:
    """The time until the two are out of range at constant velocity: the later root of |d + v t| = range, in seconds."""
    dx, dy = np.subtract(sighting.position_m, sighting.server_position_m)
    vx, vy = np.subtract(sighting.velocity_mps, sighting.server_velocity_mps)
    a, b, c = vx * vx + vy * vy, dx * vx + dy * vy, dx * dx + dy * dy - sighting.range_m**2
    if c > 0:
        return 0.0
    return math.inf if a == 0 else float((-b + math.sqrt(b * b - a * c)) / a)


class ByExperience(Guide):
    """Guided by measurements: goodput for the rate, recent contacts or a sighting for the time.

    In a contact it exchanges at once and then every ``every_s`` seconds. An update older than ``resumes_s`` is taken
    back, because the device has something better to send by then. After ``max_local_steps`` steps without a new model
    it stops training: the further a local model drifts, the less its update helps the fleet.
    """

    def __init__(
        self,
        link: Link,
        *,
        device: int = 0,
        samples: Callable[[], int | None] = no_samples,
        loss: Callable[[], float | None] = no_loss,
        max_local_steps: int = MAX_LOCAL_STEPS,
        every_s: float = 10.0,
        resumes_s: float = 10.0,
        steps: int | None = None,
        sighting: Callable[[], Sighting | None] = no_sighting,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._device, self._samples, self._loss = link, device, samples, loss
        self._max_local_steps = max_local_steps
        self._every_s, self._resumes_s, self._steps = every_s, resumes_s, steps
        self._sighting, self._clock = sighting, clock
        self._contacts_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._rates_bps: deque[float] = deque(maxlen=_REMEMBERED)
        self._since_s: float | None = None
        self._exchanged_s = -math.inf  # the time of the last exchange in this contact
        self._wait_s = -math.inf  # the server accepts no upload before

    @property
    def rate_bps(self) -> float:
        """The expected rate in bit/s: the median of the measurements."""
        return float(np.median(self._rates_bps)) if self._rates_bps else _FIRST_RATE_BPS

    @property
    def left_s(self) -> float:
        """The expected rest of the contact in seconds: by the sighting, or from past contacts."""
        if (seen := self._sighting()) is not None:
            return min(max(seconds_in_range(seen), 0.5), 3600.0)
        usual_s = float(np.mean(self._contacts_s)) if self._contacts_s else _FIRST_CONTACT_S
        elapsed_s = 0.0 if self._since_s is None else self._clock() - self._since_s
        # A contact longer than usual is expected to last as long again.
        return max(usual_s - elapsed_s, elapsed_s / 2, 0.5)

    def trains_until(self, progress: Progress, state: DeviceState) -> int:
        """So many steps after the last model, and never beyond the last step."""
        until = state.received_round + int(progress.settings.get("max_local_steps", self._max_local_steps))
        return until if self._steps is None else min(until, self._steps)

    def samples(self) -> int | None:
        return self._samples()

    def loss(self) -> float | None:
        return self._loss()

    def wait(self, seconds: float) -> None:
        self._wait_s = self._clock() + seconds

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        """Now, unless the last exchange is too recent. Rounds are local steps, and no two exchanges share one."""
        every_s = progress.settings.get("exchange_every_s", self._every_s)
        if self._clock() < max(self._exchanged_s + every_s, self._wait_s):
            return None
        round_ = max(progress.trained_round, progress.cut_round + 1, state.received_round + 1, state.backlog_round)
        seen = self._sighting()
        return Occasion(
            round=round_,
            contact_s=self.left_s,
            gain_per_watt=self._link.gain_per_watt(self.rate_bps),
            device=self._device,
            samples=self._samples(),
            position_m=None if seen is None else seen.position_m,
            speed_mps=None if seen is None else math.hypot(*seen.velocity_mps),
            chunk_bytes=chunk_bytes_at(self.rate_bps),
        )

    def resumes(self, progress: Progress) -> bool:
        return 0 <= time.time() - progress.cut_s < self._resumes_s

    def is_over(self, progress: Progress) -> bool:
        """True after all steps and a complete exchange that started after the last step."""
        finished = progress.finished_round == progress.cut_round
        return self._steps is not None and finished and progress.cut_round >= self._steps

    def in_reach(self) -> None:
        """A new contact: exchange without waiting."""
        self._since_s, self._exchanged_s = self._clock(), -math.inf

    def out_of_reach(self) -> None:
        if self._since_s is not None:
            self._contacts_s.append(self._clock() - self._since_s)
            self._since_s = None

    def measured(self, bits: float, seconds: float) -> None:
        if bits > 0 and seconds > 0:
            self._rates_bps.append(bits / seconds)

    def exchanged(self) -> None:
        self._exchanged_s = self._clock()
