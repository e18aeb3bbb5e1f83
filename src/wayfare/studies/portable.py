"""Whether schemes and tasks can be sent to worker processes, which know files but no cells of a notebook."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import torch


def why_only_here(things: Sequence[object]) -> str | None:
    """Why runs that need some objects must stay in this process; None where workers can have them, or will say why not.

    A worker process imports what a file defines. The main program of a notebook, a prompt or a pipe has no file.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is not None and Path(file).is_file():
        return None
    if file is not None:
        return f"the program comes from {file}, which worker processes cannot read"
    finder = _Finder()
    # What no process could be sent is refused when it is sent.
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        for thing in things:
            finder.dump(thing)
    if finder.found is None:
        return None
    return f"{finder.found} is defined in a notebook cell or at a prompt, where worker processes cannot find it"


class _Finder(pickle.Pickler):
    """Goes through objects as pickle does and keeps the name of one that only the main program defines."""

    def __init__(self) -> None:
        super().__init__(cast(Any, SimpleNamespace(write=lambda _: None)), protocol=5)
        self.found: str | None = None

    def reducer_override(self, thing: Any) -> Any:
        """Look at classes and functions; numbers of tensors do not matter."""
        if isinstance(thing, torch.Tensor):
            return tuple, ()
        if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
            self.found = thing.__qualname__
        return NotImplemented
