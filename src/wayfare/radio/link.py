"""Rate and energy of a transmission (Section V-A)."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Powers beyond 2^64 / g are infinite for any radio; 2^1024 would overflow.
_MAX_EXPONENT = 64.0
# The largest log2(1 + SNR) of a real radio. Higher rates mean that the scenario's bandwidth is not the real one.
MAX_BPS_PER_HZ = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The constants of all contacts of a run: the radio, and the size and cost of updates."""

    bandwidth_hz: float
    max_power_watts: float
    parameters: int  # s, the entries of an update
    bits_per_entry: float  # b, value and index of one kept entry
    dense_bits: float  # an update without indices
    statistics_bits: float = 0.0  # normalisation statistics, part of every upload
    sums: int = 0  # of the entries, the first: class statistics
    first_sums: int = 0  # of these, the first: they go before all others

    def rate_bps(self, power_watts: float, gain_per_watt: float) -> float:
        """A = B log2(1 + p g), in bit/s."""
        return self.bandwidth_hz * math.log1p(power_watts * gain_per_watt) / math.log(2.0)

    def gain_per_watt(self, rate_bps: float) -> float:
        """g = (2^(A / B) - 1) / p: the gain at which full power reaches a rate; that of a real radio at most."""
        bps_per_hz = min(rate_bps / self.bandwidth_hz, MAX_BPS_PER_HZ)
        return math.expm1(math.log(2.0) * bps_per_hz) / self.max_power_watts

    def power_watts(self, bits: float, seconds: float, gain_per_watt: float) -> float:
        """p = (2^(bits / (B t)) - 1) / g: the least power that sends some bits in some seconds."""
        bps_per_hz = bits / (self.bandwidth_hz * seconds)
        return math.expm1(math.log(2.0) * bps_per_hz) / gain_per_watt if bps_per_hz < _MAX_EXPONENT else math.inf

    def energy_joules(self, bits: float, power_watts: float, gain_per_watt: float) -> float:
        """E = p bits / A, in joules."""
        if bits == 0 or power_watts == 0:
            return 0.0
        return power_watts * bits / self.rate_bps(power_watts, gain_per_watt)
