"""The records of runs: one SQLite file each.

Design decisions:

- A record is one SQLite file per run, with a checksum over everything in it. A folder gets its final name only when the
  run is complete.
- A checkpoint holds the state, not a recipe. Retraining from the received model would save a third of the space but
  change the last bits of stacks. It is read with `weights_only` after a SHA-256 check.
- First the file, then one transaction that names it. A checkpoint is written, flushed and renamed; then one transaction
  commits the records and the row with its name. After any kill the newest row is complete, and files without a row are
  deleted.
- Locks are the kernel's: a `flock` dies with its process, a lock file would outlive it.
- Statistics need few assumptions. Differences are paired and tested by flipping signs. Times to a target are medians
  that include seeds that never reached it.
"""

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
from wayfare.records.unfinished import (
    Unfinished,
    complete,
    find_unfinished,
    reject_changes,
    reject_other_code,
    reject_other_record,
    reopen,
)
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
    "reject_other_record",
    "reopen",
    "run_inputs",
    "run_json",
    "summarise_run",
    "summarise_scheme",
]
