"""The radio of a device: its terms, its energy budget, and the hook that sets its power."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wayfare.device import DeviceState, Terms
from wayfare.field.runtime.daily import DailyBytes, unlimited

NO_SETTINGS: Mapping[str, Any] = {}


def no_radio(power_watts: float) -> None:
    """The default hook, for radios without power control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Radio:
    """The method, its terms, the hook that sets the power of a radio, and the bytes of a day."""

    terms: Terms
    daily: DailyBytes = field(default_factory=unlimited)
    period_joules: float | None = None  # the budget of each period of `terms.rounds`; None: there is one period
    set_power_watts: Callable[[float], None] = no_radio

    def in_period(
        self, state: DeviceState, round_: int, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> tuple[DeviceState, Terms]:
        """State and terms of a contact. A fleet has no last round: after k periods a device has had k budgets.

        ``settings`` may have another learning rate, by which the controller divides updates.
        """
        if self.period_joules is None:
            return state, self.terms
        terms = self.terms
        if terms.norm_scale != 1.0 and "learning_rate" in settings:
            terms = replace(terms, norm_scale=1 / settings["learning_rate"])
        periods = max(-(-round_ // self.terms.rounds), 1)
        budget_joules = periods * self.period_joules
        return replace(state, budget_joules=budget_joules), replace(terms, rounds=periods * terms.rounds)
