"""FedMobile: AFL, and devices that meet carry updates and models for each other."""

from __future__ import annotations

from dataclasses import dataclass

from wayfare.scenario.exchange import Relays
from wayfare.schemes.dense import Dense

BILLED: dict[str, str] = {"energy": "budget", "attempts": "all", "delivery": "separate"}
"""The reading of `:billed`: a relay is an upload like any other. Every attempt is made and paid for."""


@dataclass(frozen=True)
class FedMobile(Dense):
    """FedMobile (Bian and Xu 2022): AFL, and devices that meet carry updates and newer models for each other."""

    name: str = "fedmobile"
    relays: bool | Relays = True

    def any_length(self) -> bool:
        """Relays are chosen by who meets the server sooner, and after the last round nobody does."""
        return False
