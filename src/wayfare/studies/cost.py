"""Run times: a rough relative cost, and estimates from finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from wayfare.methods import Method
from wayfare.scenario import Scenario

# A scheme that trains only in contacts takes about a quarter of the time on the default preset (1.4 s against 5.8 s).
_IN_CONTACT_ONLY = 0.25


def relative_cost(scenario: Scenario, scheme: Method, parameters: int) -> float:
    """The approximate number of multiplications in local steps; it ranks runs but does not predict seconds."""
    steps = scenario.rounds * scenario.fleet.devices * scenario.learning.batch_size
    share = 1.0 if scheme.local.trains_between_contacts else _IN_CONTACT_ONLY
    return steps * share * parameters


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost and wall time of a finished run."""

    point: int
    scheme: str
    cost: float  # by `relative_cost`
    wall_s: float


class Estimates:
    """Estimated wall times, from finished runs of the same point and scheme, else of the scheme, else of all."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self._alike: dict[tuple[int, str], list[float]] = {}
        self._pace_of: dict[str, list[float]] = {}
        for run in measured:
            self._alike.setdefault((run.point, run.scheme), []).append(run.wall_s)
            self._pace_of.setdefault(run.scheme, []).append(run.wall_s / run.cost)
        self._pace = [pace for paces in self._pace_of.values() for pace in paces]

    def seconds(self, point: int, scheme: str, cost: float) -> float | None:
        if (point, scheme) in self._alike:
            return fmean(self._alike[point, scheme])
        pace = self._pace_of.get(scheme, self._pace)
        return cost * fmean(pace) if pace else None
