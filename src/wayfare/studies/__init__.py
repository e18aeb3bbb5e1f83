"""Runs and comparisons of runs."""

from wayfare.studies.local import Comparison, Progress, compare, summarise
from wayfare.studies.single import RUNS, run

__all__ = ["RUNS", "Comparison", "Progress", "compare", "run", "summarise"]
