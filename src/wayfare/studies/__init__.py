"""Runs and comparisons of runs."""

from wayfare.studies.keeping import Safeguards
from wayfare.studies.local import Comparison, Progress, compare, summarise
from wayfare.studies.resuming import resume
from wayfare.studies.single import Execution, run

__all__ = ["Comparison", "Execution", "Progress", "Safeguards", "compare", "resume", "run", "summarise"]
