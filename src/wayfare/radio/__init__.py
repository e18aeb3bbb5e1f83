"""The radio: channel, rate and energy of a contact."""

from wayfare.radio.fading import gains_per_watt, peer_gains_per_watt
from wayfare.radio.link import Link

__all__ = ["Link", "gains_per_watt", "peer_gains_per_watt"]
