"""Where Wayfare keeps things."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
"""Run folders, below the folder in which a command is started."""
