"""Files and folders that a run reads, by their content."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from wayfare.learning.tasks import is_from_file
from wayfare.scenario import Scenario
from wayfare.scenario.load import names_python_file

# Increased whenever a trace gives other contacts than before.
_READING = 2


def files_of(scenario: Scenario) -> dict[str, str | None]:
    """The fields of a scenario that name files, with hashes of their content; paths do not count.

    Prepared scenes count by their content, which includes the map; a folder of sequences by its names and sizes.
    """
    found: dict[str, str | None] = {}
    if is_from_file(scenario.learning):
        # The task's own entry has its code and data.
        found["learning.task"] = Path(scenario.learning.task).name
    library, at, _ = scenario.learning.backbone.partition("@")
    if at or names_python_file(library):
        # The digest of the backbone has its weights and code.
        found["learning.backbone"] = library if at else Path(library).name
    trace = scenario.model_dump(mode="json", include={"mobility"})["mobility"].get("file")
    if trace is not None:
        found["mobility.file"] = f"{_READING} {content_of(trace)}"
    section = scenario.learning.argoverse
    if section.prepared_file is not None:
        found |= {
            "learning.argoverse.folder": content_of(str(section.prepared_file)),
            "learning.argoverse.map_folder": None,
        }
    elif section.folder is not None:
        found |= {
            "learning.argoverse.folder": _listing_of(Path(section.folder)),
            "learning.argoverse.map_folder": section.map_folder and _listing_of(Path(section.map_folder)),
        }
    return found


def content_of(file: str) -> str:
    """The hash of a file or folder, or its name if it cannot be read; a run with it then raises an error."""
    try:
        if Path(file).is_dir():
            files = sorted(path for path in Path(file).rglob("*") if path.is_file())
            parts = [f"{path.relative_to(file).as_posix()} {content_of(str(path))}" for path in files]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        status = Path(file).stat()
    except OSError:
        return file
    return _hash(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=100_000)
def _hash(file: str, changed_ns: int, size_bytes: int) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _listing_of(folder: Path) -> str:
    """A hash of names and sizes, or the name of a missing folder."""
    changed_ns = tuple(path.stat().st_mtime_ns for path in (folder, *folder.glob("*/data")) if path.is_dir())
    return _listed(folder, changed_ns) if changed_ns else str(folder)


@lru_cache
def _listed(folder: Path, changed_ns: tuple[int, ...]) -> str:
    files = [f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in folder.rglob("*.*")]
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()
