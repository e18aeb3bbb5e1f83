"""Federated learning for devices that move.

import wayfare

scenario = wayfare.load("fashion-small", ["mobility.speed_mps=10"])
comparison = wayfare.compare(scenario, ["mads", "afl-spar"], seeds=3)
for scheme in comparison.schemes:
    print(scheme.name, scheme.accuracy_mean, scheme.energy_joules_mean)
"""

from wayfare.radio import Link
from wayfare.scenario import Scenario, load
from wayfare.schemes import Encounter, Scheme, Upload, power_and_allowance, send_dense, send_top_k
from wayfare.studies import compare, run
from wayfare.version import __version__

__all__ = [
    "Encounter",
    "Link",
    "Scenario",
    "Scheme",
    "Upload",
    "__version__",
    "compare",
    "load",
    "power_and_allowance",
    "run",
    "send_dense",
    "send_top_k",
]
