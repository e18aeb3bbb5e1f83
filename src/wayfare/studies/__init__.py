"""Runs, comparisons and studies.

Design decisions:

- A run is its key. Studies find finished runs by a hash of everything their numbers depend on, so a grid can change at
  any time.
- The checkpoint interval grows with the cost: 30 s, and at least 50 times the last write. A failed write ends the run.
- Signals keep their meaning. A run saves itself after its round, unlocks, and raises the signal again. A second SIGINT
  stops at once; a second SIGTERM does not, because process pools send it twice.
- A longer run is a new run. It continues from the last checkpoint up to which both worlds are equal. Schemes that
  depend on the number of rounds are rejected.
- One queue of jobs serves comparisons and studies. A lost worker costs its job another try, three in all; a run that
  raises an exception is not repeated. Workers are our own processes, because a standard pool breaks when one process is
  killed.
- On a GPU, jobs are threads of one process. They share data and captured graphs, and local steps of one run fill the
  gaps that contacts of another leave. A study has one precision, so PyTorch's settings are set once around it.
- Longest jobs first, then the same world. A worker stays in its world unless a job more than twice as long waits.
- Ray's own retries are off, so a lost task counts like a lost worker. Records return as bytes, because nodes may not
  share a folder.
- Recorded figures outlive their runs: CSV files hold every run and evaluation, and `scripts/record_figure.py` adds runs
  and redraws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOME = {
    "Execution": "single",
    "Progress": "jobs",
    "Safeguards": "keeping",
    "StudyResults": "results",
    "Sweep": "sweeping",
    "compare": "sweeping",
    "load_study": "study",
    "resume": "resuming",
    "run": "single",
    "summarise": "results",
    "sweep": "sweeping",
}


def __getattr__(name: str) -> Any:
    """Import PyTorch only when a name is used: a misspelt study needs none of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
