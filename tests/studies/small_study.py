"""A study of short runs, and what it takes to say that two runs are the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.conftest import SMALL

SETTINGS = "\n".join(setting.replace("1e3", "1000.0") for setting in SMALL if not setting.startswith("rounds"))


def write_study(folder: Path, *, rounds: int = 60, speeds: str = "[10, 20]", seeds: int = 2, more: str = "") -> Path:
    """A study file with two schemes."""
    file = folder / "small.toml"
    file.write_text(
        f'schemes = ["mads", "afl"]\nseeds = {seeds}\ntargets = ["20 %", "99 %"]\n{more}\n'
        f"[set]\nrounds = {rounds}\n{SETTINGS}\n[grid]\nmobility.speed_mps = {speeds}\n",
        encoding="utf-8",
    )
    return file


def bits_of(run: Path) -> list[object]:
    """Everything a run recorded but the clock: contacts, evaluations, the final model."""
    with closing(sqlite3.connect(run / "run.sqlite")) as database:
        tables = ("contacts", "evaluations", "metrics", "devices", "model")
        return [database.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


def bits_of_study(study: Path) -> dict[str, list[object]]:
    """The same for every run of a study, by name."""
    return {run.name: bits_of(run) for run in sorted((study / "runs").iterdir()) if run.is_dir()}
