"""The cost of a kept entry: by the paper's accounting, and as encoded bytes."""

from wayfare.codec.link import make_link
from wayfare.codec.paper import bits_per_entry, dense_bits

__all__ = ["bits_per_entry", "dense_bits", "make_link"]
