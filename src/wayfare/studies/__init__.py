"""Runs, comparisons and studies."""

from wayfare.studies.comparison import Comparison, compare, summarise
from wayfare.studies.jobs import Progress
from wayfare.studies.keeping import Safeguards
from wayfare.studies.resuming import resume
from wayfare.studies.single import Execution, run
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import Sweep, sweep

__all__ = [
    "Comparison",
    "Execution",
    "Progress",
    "Safeguards",
    "Sweep",
    "compare",
    "load_study",
    "resume",
    "run",
    "summarise",
    "sweep",
]
