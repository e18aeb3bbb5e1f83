"""When the server applies recorded chunks."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from wayfare.contacts import Opportunities
from wayfare.field.runtime.ledger import Ledger


class Gathering(Protocol):
    """Applies recorded chunks to the model, and decides when a device may download it."""

    @property
    def by_round(self) -> bool:
        """Whether it needs to know which devices have finished a round."""

    def apply_due(self, ledger: Ledger) -> None:
        """Apply all chunks that are due."""

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        """The version that a device downloads in a round; None while it is incomplete.

        A device whose contact was cut short gets the version before the round, as in the simulator.
        """

    def refusal(self, device: int, round_: int) -> str | None:
        """Why a device cannot exchange in a round."""


class OnArrival:
    """Apply chunks on arrival; the model never waits for a device."""

    by_round = False

    def apply_due(self, ledger: Ledger) -> None:
        ledger.apply(ledger.due())

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        return ledger.version

    def refusal(self, device: int, round_: int) -> str | None:
        return None


class ByPlan:
    """Round by round with all devices of the plan's round: all upload, then all download, as in the simulator."""

    by_round = True

    def __init__(self, meets: Opportunities, rounds: int = 0) -> None:
        self._last_round = rounds
        self._met: defaultdict[int, set[int]] = defaultdict(set)
        for round_, device in zip(meets.round.tolist(), meets.device.tolist(), strict=True):
            self._met[round_].add(device)
        self._rounds = sorted(self._met)

    def apply_due(self, ledger: Ledger) -> None:
        """Apply rounds in order, as far as all their devices have finished."""
        for round_ in self._rounds:
            if round_ < ledger.next_round:
                continue
            if not self._met[round_] <= ledger.finished(round_):
                break
            ledger.apply(ledger.due(round_), next_round=round_ + 1)
        else:
            # After the last contact the remaining rounds only advance the mean of the models.
            if ledger.next_round <= self._last_round:
                ledger.apply([], next_round=self._last_round + 1)

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        """The version after the round, once all its devices have finished."""
        version = ledger.version_after(round_)
        return ledger.version_before(round_) if cut_short and version is not None else version

    def refusal(self, device: int, round_: int) -> str | None:
        met = device in self._met.get(round_, ())
        return None if met else f"round = {round_}: the plan has no contact of this device in it"
