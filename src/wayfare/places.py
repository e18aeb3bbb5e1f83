"""Where Wayfare keeps things."""

from __future__ import annotations

import os
import sys
from pathlib import Path

RUNS = Path("runs")
"""Run folders, below the folder in which a command is started."""

STUDY_FILE = "study.json"
"""What makes a folder that of a study."""


def data_folder() -> Path:
    """Data sets, fetched once for all runs: `WAYFARE_DATA`, or the platform's place for what can be fetched again."""
    named = os.environ.get("WAYFARE_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "wayfare"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "wayfare"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wayfare"
