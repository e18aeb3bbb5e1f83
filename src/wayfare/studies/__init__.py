"""Runs and comparisons of runs."""

from wayfare.studies.local import Comparison, Progress, compare, summarise
from wayfare.studies.single import Execution, run

__all__ = ["Comparison", "Execution", "Progress", "compare", "run", "summarise"]
