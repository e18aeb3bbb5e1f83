"""The version of the code that made a run."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def commit_of_code() -> str | None:
    """The commit of Wayfare's checkout, marked if files were changed; None if it was installed from a package.

    The variable WAYFARE_COMMIT names the commit of a copy without history.
    """
    given = os.environ.get("WAYFARE_COMMIT")
    if given:
        return given
    here = Path(__file__).parent
    try:
        # A package installed inside another repository is not part of it.
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        return _git(here, "describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
