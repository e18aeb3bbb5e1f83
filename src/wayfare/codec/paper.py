"""The paper's accounting (Section III-D): a value and an index for every kept entry."""

from __future__ import annotations

import math


def bits_per_entry(parameters: int, value_bits: int) -> float:
    """b = u + log2 s."""
    return value_bits + math.log2(parameters)


def dense_bits(parameters: int, value_bits: int) -> float:
    """s u: a whole update needs no indices."""
    return float(parameters * value_bits)
