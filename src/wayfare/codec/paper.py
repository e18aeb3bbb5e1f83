"""The paper's accounting (Section III-D): a value and an index for every kept entry."""

from __future__ import annotations

import math


def bits_per_entry(parameters: int, value_bits: int) -> float:
    """b = u + log2 s bits, for the value and index of a kept entry."""
    return value_bits + math.log2(parameters)


def dense_bits(parameters: int, value_bits: int) -> float:
    """s u bits: a dense update needs no indices."""
    return float(parameters * value_bits)
