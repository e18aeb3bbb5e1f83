"""The folders that Wayfare uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

RUNS = Path("runs")
"""The default folder for runs, relative to the current folder."""

STUDY_FILE = "study.json"
"""A folder with this file is a study."""


def data_folder() -> Path:
    """The folder of data sets: `WAYFARE_DATA`, or the platform's cache folder."""
    named = os.environ.get("WAYFARE_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "wayfare"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "wayfare"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wayfare"
