"""Runs, comparisons and studies."""

from wayfare.studies.jobs import Progress
from wayfare.studies.keeping import Safeguards
from wayfare.studies.results import StudyResults, summarise
from wayfare.studies.resuming import resume
from wayfare.studies.single import Execution, run
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import Sweep, compare, sweep

__all__ = [
    "Execution",
    "Progress",
    "Safeguards",
    "StudyResults",
    "Sweep",
    "compare",
    "load_study",
    "resume",
    "run",
    "summarise",
    "sweep",
]
