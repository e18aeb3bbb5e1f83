"""When the server applies what it has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from wayfare.arrays import Ints
from wayfare.contacts import Opportunities
from wayfare.field.runtime.ledger import Ledger


class Gathering(Protocol):
    """Brings recorded chunks into the model, and says when a device may have it."""

    @property
    def by_round(self) -> bool:
        """Whether it has to be known who has finished a round."""
        ...

    def apply_due(self, ledger: Ledger) -> bool:
        """Apply all that is due; whether there was anything."""
        ...

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        """The version that a device takes in a round; None while something that belongs into it is missing.

        A device whose contact was cut short takes the one of before, as in the simulator.
        """
        ...

    def refusal(self, ledger: Ledger, device: int, round_: int) -> str | None:
        """Why a device cannot exchange in a round."""
        ...


class OnArrival:
    """Everything at once: the model never waits for anyone."""

    by_round = False

    def apply_due(self, ledger: Ledger) -> bool:
        keys = ledger.due()
        ledger.apply(keys)
        return bool(keys)

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        return ledger.version

    def refusal(self, ledger: Ledger, device: int, round_: int) -> str | None:
        return None


class ByPlan:
    """Round by round, with everyone whom the plan has in it: all upload, then all download, as in the simulator."""

    by_round = True

    def __init__(self, meets: Opportunities, rounds: int = 0) -> None:
        self._last_round = rounds
        self._met: Mapping[int, set[int]] = _devices_by_round(meets.round, meets.device)
        self._rounds = sorted(self._met)

    @property
    def rounds(self) -> list[int]:
        return self._rounds

    def apply_due(self, ledger: Ledger) -> bool:
        """Every round, in order, in which everyone has finished."""
        applied = False
        for round_ in self._rounds:
            if round_ < ledger.next_round:
                continue
            if not self._met[round_] <= ledger.finished(round_):
                break
            ledger.apply(ledger.due(round_), next_round=round_ + 1)
            applied = True
        else:
            # After the last contact the rounds that are left pass by themselves, for the mean of the models.
            if ledger.next_round <= self._last_round:
                ledger.apply([], next_round=self._last_round + 1)
        return applied

    def version_for(self, ledger: Ledger, round_: int, *, cut_short: bool) -> int | None:
        """The one after the round, when everyone has finished it, whatever came later."""
        version = ledger.version_after(round_)
        return version if version is None or not cut_short else ledger.version_before(round_)

    def refusal(self, ledger: Ledger, device: int, round_: int) -> str | None:
        if device not in self._met.get(round_, ()):
            return f"round = {round_}: the plan has no contact of this device in it"
        return None


def _devices_by_round(rounds: Ints, devices: Ints) -> dict[int, set[int]]:
    met: dict[int, set[int]] = {}
    for round_, device in zip(rounds.tolist(), devices.tolist(), strict=True):
        met.setdefault(round_, set()).add(device)
    return met
