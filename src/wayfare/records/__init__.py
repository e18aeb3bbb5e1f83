"""What runs leave behind: one SQLite file each."""

from wayfare.records.read import RunRecord, find_runs, read_run
from wayfare.records.summary import (
    RunSummary,
    SchemeSummary,
    paired_difference,
    summarise_run,
    summarise_scheme,
    summary_json,
)
from wayfare.records.write import RunWriter

__all__ = [
    "RunRecord",
    "RunSummary",
    "RunWriter",
    "SchemeSummary",
    "find_runs",
    "paired_difference",
    "read_run",
    "summarise_run",
    "summarise_scheme",
    "summary_json",
]
