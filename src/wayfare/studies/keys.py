"""The key of a run: a hash of everything its numbers depend on."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from wayfare.learning.tasks import Task
from wayfare.methods import Method, Part, identity_of
from wayfare.scenario import Scenario
from wayfare.studies.fingerprint import fingerprint
from wayfare.studies.single import Execution
from wayfare.version import ALGORITHM

_CHARACTERS = 16
# Counted up when a trace is read as other contacts than before.
_READING = 2


def run_key(scenario: Scenario, scheme: Method, seed: int, execution: Execution, task: Task | None = None) -> str:
    """Scenario, scheme with its parameters, seed, the version of the algorithm, and the precision of its numbers.

    A scheme or task of the user's own counts by its code and its data.

    What a scenario is called and which schemes it lists does not count, nor does where its trace or its sequences lie:
    their content does. Engine and device do not count either: they decide about speed, and rounding at most.
    """
    content = scenario.model_dump(mode="json", exclude={"name", "schemes"})
    trace = content["mobility"].get("file")
    if trace is not None:
        content["mobility"]["file"] = f"{_READING} {_content_of(trace)}"
    content["learning"]["argoverse"] |= _sequences(scenario)
    everything = {
        "algorithm": ALGORITHM,
        "scenario": content,
        "scheme": {"name": scheme.name, **{kind: _part(part) for kind, part in scheme.parts.items()}},
        "seed": seed,
        "precision": execution.precision,
        "fast": execution.fast,
    }
    if task is not None:
        everything["task"] = fingerprint(task)
    text = json.dumps(everything, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]


def _part(part: Part) -> dict[str, Any]:
    """Class and values of one of Wayfare's parts; one of the user's own counts by what it does, and by its file."""
    known = identity_of(part)
    if known["class"].startswith("wayfare."):
        return known
    return {**known, "values": fingerprint(part)}


def _sequences(scenario: Scenario) -> dict[str, str | None]:
    """What a task of sequences reads: the content of a file of prepared scenes, or names and sizes of many files.

    Prepared scenes hold their map.
    """
    section = scenario.learning.argoverse
    if section.folder is None:
        return {}
    if section.prepared_file is not None:
        return {"folder": _content_of(str(section.prepared_file)), "map_folder": None}
    return {
        "folder": _listing_of(Path(section.folder)),
        "map_folder": section.map_folder and _listing_of(Path(section.map_folder)),
    }


def _listing_of(folder: Path) -> str:
    """A hash of names and sizes; a folder that is not there has its name only."""
    changed_ns = tuple(path.stat().st_mtime_ns for path in (folder, *folder.glob("*/data")) if path.is_dir())
    return _listed(folder, changed_ns) if changed_ns else str(folder)


@lru_cache
def _listed(folder: Path, changed_ns: tuple[int, ...]) -> str:
    files = [f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in folder.rglob("*.*")]
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()


def _content_of(file: str) -> str:
    """The hash of a trace, a file or a folder; one that cannot be read has its name only, and its runs will say so."""
    try:
        if Path(file).is_dir():
            files = sorted(path for path in Path(file).rglob("*") if path.is_file())
            parts = [f"{path.relative_to(file).as_posix()} {_content_of(str(path))}" for path in files]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
        changed_ns = Path(file).stat().st_mtime_ns
    except OSError:
        return file
    return _hash(file, changed_ns)


@lru_cache(maxsize=100_000)
def _hash(file: str, changed_ns: int) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
