"""Schemes that send whole models: one upload per contact, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from wayfare.radio import Link
from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload
from wayfare.schemes.sending import least_joules, power_and_allowance, send_dense


@dataclass(frozen=True)
class Dense(Scheme):
    """Sends everything at the power of an energy rule.

    The paper does not say whether a device starts an upload that cannot finish. By default it does, and pays for it;
    a ``fitting`` scheme uses its forecast of the contact, as sparse schemes do, and skips such contacts.
    """

    name: str
    energy_rule: EnergyRule = "greedy"
    fitting: bool = False
    forecasts: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # Only a scheme that skips contacts looks at how long they last.
        object.__setattr__(self, "forecasts", self.fitting)

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        """The whole update at the power of the rule."""
        power_watts, allowance_joules = power_and_allowance(self.energy_rule, encounter, link)
        return send_dense(encounter, link, power_watts, allowance_joules, fitting=self.fitting)

    def least_joules(self, link: Link) -> float:
        """That of a whole update."""
        return least_joules(self.energy_rule, link, link.dense_bits)

    def any_length(self) -> bool:
        """Only a pace depends on how many rounds there are."""
        return self.energy_rule != "paced"
