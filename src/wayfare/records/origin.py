"""Which state of the code made a run."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def commit_of_code() -> str | None:
    """The commit that Wayfare runs from, marked where files differ from it; None where it was installed from a package.

    A copy of a checkout that left its history behind is told by the variable WAYFARE_COMMIT.
    """
    told = os.environ.get("WAYFARE_COMMIT")
    if told:
        return told
    here = Path(__file__).parent
    try:
        # A package installed below somebody else's repository is none of its files.
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        return _git(here, "describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
