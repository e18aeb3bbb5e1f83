"""Federated learning for devices that move.

import wayfare

scenario = wayfare.load("fashion-small", ["mobility.speed_mps=10"])
comparison = wayfare.compare(scenario, ["mads", "afl-spar"], seeds=3)
for scheme in comparison.schemes:
    print(scheme.name, scheme.score_mean, scheme.energy_joules_mean)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wayfare.version import __version__

if TYPE_CHECKING:
    from wayfare.cli.terminal import RunProgress
    from wayfare.learning.tasks import Metric, local_task, own_task, simulated_task
    from wayfare.methods import (
        Arrival,
        Compressor,
        Encounter,
        LocalRule,
        MemoryRule,
        Method,
        PeerRule,
        ServerRule,
        ServerTerms,
        Upload,
        UploadRule,
        compose,
        power_and_allowance,
        send_dense,
        send_top_k,
    )
    from wayfare.radio import Link
    from wayfare.report.notebook import compare, sweep
    from wayfare.scenario import Scenario, load
    from wayfare.studies import Execution, Safeguards, load_study, resume, run

__all__ = [
    "Arrival",
    "Compressor",
    "Encounter",
    "Execution",
    "Link",
    "LocalRule",
    "MemoryRule",
    "Method",
    "Metric",
    "PeerRule",
    "RunProgress",
    "Safeguards",
    "Scenario",
    "ServerRule",
    "ServerTerms",
    "Upload",
    "UploadRule",
    "__version__",
    "compare",
    "compose",
    "load",
    "load_study",
    "local_task",
    "own_task",
    "power_and_allowance",
    "resume",
    "run",
    "send_dense",
    "send_top_k",
    "simulated_task",
    "sweep",
]

# Names without an entry below are in `methods`.
_HOME = {name: "methods" for name in __all__ if name != "__version__"} | {
    "Link": "radio",
    "RunProgress": "cli.terminal",
    **dict.fromkeys(("Scenario", "load"), "scenario"),
    **dict.fromkeys(("Metric", "local_task", "own_task", "simulated_task"), "learning.tasks"),
    **dict.fromkeys(("compare", "sweep"), "report.notebook"),
    **dict.fromkeys(("Execution", "Safeguards", "load_study", "resume", "run"), "studies"),
}


def __dir__() -> list[str]:
    """The public names, imported or not, and what Python itself adds."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Import a public name on first use: PyTorch takes seconds to import, and not every command needs it."""
    if name in _HOME:
        return getattr(import_module(f"wayfare.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wayfare' has no attribute {name!r}")
