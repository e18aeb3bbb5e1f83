"""Runs and comparisons of runs."""

from wayfare.studies.local import Comparison, Progress, compare, summarise
from wayfare.studies.single import run

__all__ = ["Comparison", "Progress", "compare", "run", "summarise"]
