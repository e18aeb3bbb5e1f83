"""Upload rules: how many entries a device sends in a contact, and with what power."""

from wayfare.methods.uploads.mads import Mads
from wayfare.methods.uploads.mads_rd import MadsRd, Step
from wayfare.methods.uploads.sending import MOST_BPS_PER_HZ, power_and_allowance, send_dense, send_top_k
from wayfare.methods.uploads.simple import Fitting, Whole

__all__ = [
    "MOST_BPS_PER_HZ",
    "Fitting",
    "Mads",
    "MadsRd",
    "Step",
    "Whole",
    "power_and_allowance",
    "send_dense",
    "send_top_k",
]
