"""Finds the text of a study, without PyTorch, so that a misspelt name is reported at once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from wayfare.errors import ScenarioError

_PRESETS = files("wayfare.studies") / "presets"


def study_presets() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _PRESETS.iterdir() if entry.name.endswith(".toml"))


def study_text(source: str) -> tuple[str, Path | None]:
    """The text of a preset or file, and the folder of the file."""
    if source in study_presets():
        return (_PRESETS / f"{source}.toml").read_text(encoding="utf-8"), None
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8"), path.parent
    except (OSError, UnicodeDecodeError, ValueError) as error:
        known = ", ".join(study_presets())
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ScenarioError("study", source, f"neither a preset ({known}) nor a readable file: {reason}") from None
