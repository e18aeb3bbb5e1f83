"""What runs leave behind: one SQLite file each."""

from wayfare.records.layout import run_name
from wayfare.records.lock import RunLock
from wayfare.records.read import RunRecord, find_runs, read_run
from wayfare.records.summary import (
    RunSummary,
    SchemeSummary,
    final_evaluations,
    paired_difference,
    run_json,
    summarise_run,
    summarise_scheme,
)
from wayfare.records.unfinished import Unfinished, complete, find_unfinished, refuse_another, refuse_changes, reopen
from wayfare.records.write import RunWriter, beginning

__all__ = [
    "RunLock",
    "RunRecord",
    "RunSummary",
    "RunWriter",
    "SchemeSummary",
    "Unfinished",
    "beginning",
    "complete",
    "final_evaluations",
    "find_runs",
    "find_unfinished",
    "paired_difference",
    "read_run",
    "refuse_another",
    "refuse_changes",
    "reopen",
    "run_json",
    "run_name",
    "summarise_run",
    "summarise_scheme",
]
