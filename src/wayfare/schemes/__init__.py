"""The methods that are compared: each decides from an encounter alone what to send."""

from wayfare.schemes.base import Encounter, EnergyRule, Scheme, Upload, mixes_models, paper_demand
from wayfare.schemes.registry import checked, choices_of, descriptions, make_scheme
from wayfare.schemes.sending import power_and_allowance, send_dense, send_top_k

__all__ = [
    "Encounter",
    "EnergyRule",
    "Scheme",
    "Upload",
    "checked",
    "choices_of",
    "descriptions",
    "make_scheme",
    "mixes_models",
    "paper_demand",
    "power_and_allowance",
    "send_dense",
    "send_top_k",
]
