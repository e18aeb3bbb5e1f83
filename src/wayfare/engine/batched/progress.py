"""How far the launched groups of a lane are: a GPU needs the next step shortly before the last one ends.

If it comes later, the GPU is idle. If it comes earlier, fewer devices take part, because more of them wait for a
contact. Times only decide when devices train; they do not change results.
"""

from __future__ import annotations

import math
import time

import torch

# The time that the host needs to launch a step.
_LITTLE_S = 2e-3
# The weight of the newest time in the mean.
_NEWEST = 0.2


class Progress:
    """A launched group: the numbers of devices in its steps, its begin and its end."""

    def __init__(self, devices_in_steps: list[int], *, is_first: bool) -> None:
        self.devices_in_steps = devices_in_steps
        # The first steps with a number of devices also compile and capture.
        self.is_first = is_first
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._seen_at_s: float | None = None

    def seconds(self) -> float:
        """The seconds that a group which has ended took on the GPU."""
        return float(self.begin.elapsed_time(self.end)) / 1e3

    def running_s(self) -> float:
        """For how many seconds the host has known that the group runs."""
        if self._seen_at_s is None:
            if not self.begin.query():
                return -math.inf
            self._seen_at_s = time.perf_counter()
        return time.perf_counter() - self._seen_at_s


class StepTimes:
    """The mean seconds of a step by its number of devices, the newest ones weighted most."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, ended: Progress) -> None:
        """Learn from a group that has ended."""
        if len(ended.devices_in_steps) == 1 and not ended.is_first:
            devices, newest = ended.devices_in_steps[0], ended.seconds()
            mean = self._seconds.get(devices, newest)
            self._seconds[devices] = mean + _NEWEST * (newest - mean)

    def is_ending(self, group: Progress) -> bool:
        """Whether a group has ended or will soon. One whose steps are new is not expected to end."""
        if group.end.query():
            return True
        expected_s = sum(self._seconds.get(devices, math.inf) for devices in group.devices_in_steps)
        return group.running_s() > expected_s - _LITTLE_S
