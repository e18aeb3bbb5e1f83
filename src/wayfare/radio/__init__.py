"""The radio: channel, rate and energy of a contact.

Design decisions:

- A channel is drawn at the distance of a random instant of the contact. For crossings of a disc this is the uniform
  distribution over it, which the exponential model uses too.
"""

from wayfare.radio.fading import gains_per_watt, peer_gains_per_watt
from wayfare.radio.link import Link

__all__ = ["Link", "gains_per_watt", "peer_gains_per_watt"]
