"""Runs, comparisons and studies."""

from wayfare.studies.comparison import Comparison, compare, summarise
from wayfare.studies.jobs import Progress
from wayfare.studies.single import Execution, run

__all__ = ["Comparison", "Execution", "Progress", "compare", "run", "summarise"]
