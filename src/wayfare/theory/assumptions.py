"""Costs that every result ignores, and the share of contacts that could carry the whole model down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wayfare.errors import ScenarioError
from wayfare.radio import Link
from wayfare.scenario.section import LARGEST
from wayfare.theory.rehearsal import Stage

# A server with the radio of a device (23 dBm), a small mobile base station, and a station near 38 dBm, where 3GPP
# TS 38.104 ends the medium-range class. Rates grow with the logarithm of power, so three powers cover the range.
SERVER_POWERS_WATTS = (0.2, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Assumption:
    """A cost that results ignore. Programs recognise it by its kind."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Downlink:
    """The share of contacts that could carry the whole model down if they did nothing else."""

    server_power_watts: float
    downlink_whole_model_share: float


def assumptions_of(link: Link) -> tuple[Assumption, ...]:
    """The three costs that neither the paper nor Wayfare bills."""
    down_mbit, band_mhz = link.dense_bits / 1e6, link.bandwidth_hz / 1e6
    down = f"{down_mbit:,.0f} Mbit" if down_mbit >= 100 else f"{down_mbit:.3g} Mbit"
    return (
        Assumption("free_downlink", f"Downloads of the global model ({down}) are free."),
        Assumption("unshared_band", f"Devices in range do not share the band: each uses all {band_mhz:g} MHz."),
        Assumption("free_computing", "Computing takes no time and no energy: budgets cover uploads only."),
    )


def check_server_power(power_watts: float) -> None:
    """Reject 0, which has no rate, and numbers above the scenario's limit, whose products overflow."""
    if not 0 < power_watts <= LARGEST:
        raise ScenarioError("server_power_watts", power_watts, f"must be above 0 and at most {LARGEST:g}")


def downlinks(stage: Stage, server_power_watts: Sequence[float]) -> tuple[Downlink, ...]:
    """The share of contacts with tau B log2(1 + p g) >= s u at each power p of the server.

    Band, noise and gain are those of the uplink: the channel is reciprocal.
    """
    found = []
    for power_watts in server_power_watts:
        fits = stage.meets.contact_s * stage.rates_bps(power_watts) >= stage.link.dense_bits
        found.append(Downlink(server_power_watts=power_watts, downlink_whole_model_share=float(fits.mean())))
    return tuple(found)
