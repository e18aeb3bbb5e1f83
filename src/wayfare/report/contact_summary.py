"""Uploads that a contact plan allows: the share of an update that fits a contact, and how often all of it fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare import codec
from wayfare.contacts import ContactPlan, opportunities
from wayfare.radio import gains_per_watt
from wayfare.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadOutlook:
    """Uploads at full power, one per opportunity, without an energy budget."""

    parameters: int
    bits_per_entry: float
    dense_bits: float
    opportunities: int
    mean_kept_share: float | None
    whole_sparse_chance: float | None
    dense_chance: float | None
    median_rate_bps: float | None


def upload_outlook(plan: ContactPlan, scenario: Scenario, parameters: int, seed: int) -> UploadOutlook:
    """Mean k/s and chance of a dense upload for the scenario's radio and a model of s parameters.

    capacity = contact_s B log2(1 + p_max g),  k/s = min(capacity / (s b), 1),  dense if capacity >= s u
    """
    s, u = parameters, scenario.upload.value_bits
    b, dense_bits = codec.bits_per_entry(s, u), codec.dense_bits(s, u)
    meets = opportunities(plan, scenario.round_s, scenario.rounds)
    gains = gains_per_watt(meets, scenario.radio, seed)
    rate_bps = scenario.radio.bandwidth_hz * np.log1p(scenario.radio.max_power_watts * gains) / np.log(2.0)
    capacity_bits = meets.contact_s * rate_bps
    some = len(meets) > 0
    return UploadOutlook(
        parameters=s,
        bits_per_entry=b,
        dense_bits=dense_bits,
        opportunities=len(meets),
        mean_kept_share=float(np.minimum(capacity_bits / (s * b), 1.0).mean()) if some else None,
        whole_sparse_chance=float((capacity_bits >= s * b).mean()) if some else None,
        dense_chance=float((capacity_bits >= dense_bits).mean()) if some else None,
        median_rate_bps=float(np.median(rate_bps)) if some else None,
    )
