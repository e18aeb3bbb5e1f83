"""The records of runs: one SQLite file each."""

from wayfare.records.layout import final_folder
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
from wayfare.records.unfinished import Unfinished, complete, find_unfinished, reject_changes, reject_other_code, reopen
from wayfare.records.write import RunWriter, run_inputs

__all__ = [
    "RunLock",
    "RunRecord",
    "RunSummary",
    "RunWriter",
    "SchemeSummary",
    "Unfinished",
    "complete",
    "final_evaluations",
    "final_folder",
    "find_runs",
    "find_unfinished",
    "paired_difference",
    "read_run",
    "reject_changes",
    "reject_other_code",
    "reopen",
    "run_inputs",
    "run_json",
    "summarise_run",
    "summarise_scheme",
]
