"""What a kept entry costs."""

from wayfare.codec.paper import bits_per_entry, dense_bits

__all__ = ["bits_per_entry", "dense_bits"]
