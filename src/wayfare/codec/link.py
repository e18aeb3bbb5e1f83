"""The link of a scenario for a model of a given size."""

from __future__ import annotations

from wayfare.codec.paper import bits_per_entry, dense_bits
from wayfare.radio import Link
from wayfare.scenario import Scenario


def make_link(scenario: Scenario, parameters: int, statistics: int = 0, *, sums: int = 0, first_sums: int = 0) -> Link:
    """The radio of a scenario, and the cost of a model's updates on it."""
    value_bits = scenario.upload.value_bits
    statistics_bits = float(statistics * value_bits)
    return Link(
        bandwidth_hz=scenario.radio.bandwidth_hz,
        max_power_watts=scenario.radio.max_power_watts,
        parameters=parameters,
        bits_per_entry=bits_per_entry(parameters, value_bits),
        dense_bits=dense_bits(parameters, value_bits) + statistics_bits,
        statistics_bits=statistics_bits,
        sums=sums,
        first_sums=first_sums,
    )
