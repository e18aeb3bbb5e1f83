"""Child processes that start at once.

They are forked from a server process that has imported PyTorch but never used it. Importing takes seconds per process,
and a forked copy of a process that has used PyTorch may hang.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

    QuickContext: TypeAlias = ForkServerContext | SpawnContext

_imported: list[str] = []


def available_cores() -> int:
    """The cores that this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_early(module: str, jobs: int | None) -> None:
    """Start the server process now, so that on another core it imports a module while this process does so too.

    ``jobs`` is the number of child processes that will be asked for; None means one per core.
    """
    if (jobs or available_cores()) > 1 and quick_context(module).get_start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver.ensure_running()


def quick_context(*modules: str) -> QuickContext:
    """A context whose processes have imported some modules; where the system cannot fork, each imports them itself."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    _imported.extend(module for module in modules if module not in _imported)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_imported)
    return context
