"""How to do it again: the files, the exact commands, and what it was done with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wayfare.places import STUDY_FILE
from wayfare.scenario import parse
from wayfare.scenario.dump import to_toml
from wayfare.schemes.registry import SCHEMES
from wayfare.studies.results import StudyResults

_SCENARIO_FILE = "scenario.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Files to save under their names, commands to type beside them, and what has to be said about that."""

    files: dict[str, str]
    commands: list[str]
    notes: list[str]


def recipe_of(results: StudyResults, meta: Mapping[str, Any]) -> Recipe:
    """The recipe of a run, a comparison or a study; ``meta`` is what one of its runs says of itself."""
    manifest = results.manifest
    scenario = parse(manifest.scenarios[0])
    seeds = sorted({run.seed for run in manifest.runs})
    flags = _execution_flags(meta.get("execution", {}))
    files, notes = {_SCENARIO_FILE: to_toml(scenario)}, []
    foreign = [name for name in manifest.schemes if name.partition(":")[0] not in SCHEMES]
    if foreign:
        notes.append(f"The package that offers {', '.join(foreign)} has to be installed.")
    if "file" in manifest.scenarios[0]["mobility"]:
        notes.append("The trace that mobility.file names has to lie where it says.")
    if (results.folder / STUDY_FILE).is_file():
        name = f"{manifest.name}.toml"
        return Recipe(
            files=files | {name: _study_toml(results, seeds)}, commands=[_line("sweep", name, *flags)], notes=notes
        )
    if len(manifest.runs) == 1:
        run = manifest.runs[0]
        words = ("run", _SCENARIO_FILE, "--scheme", run.scheme, "--seed", str(run.seed), *flags)
        return Recipe(files=files, commands=[_line(*words)], notes=notes)
    every = {(run.scheme, run.seed) for run in manifest.runs}
    if seeds == list(range(len(seeds))) and len(every) == len(manifest.schemes) * len(seeds):
        words = ("compare", _SCENARIO_FILE, "--schemes", ",".join(manifest.schemes), "--seeds", str(len(seeds)), *flags)
        return Recipe(files=files, commands=[_line(*words)], notes=notes)
    # Some runs of a rectangle only: each by itself.
    commands = [
        _line("run", _SCENARIO_FILE, "--scheme", scheme, "--seed", str(seed), *flags) for scheme, seed in sorted(every)
    ]
    return Recipe(files=files, commands=commands, notes=notes)


def made_with(meta: Mapping[str, Any], walls_s: Sequence[float]) -> dict[str, str]:
    """Versions, hardware and dates."""
    facts = {str(name): str(version) for name, version in meta.get("versions", {}).items()}
    facts["first run started"] = str(meta.get("started", "unknown"))
    facts["time of all runs"] = _duration(sum(walls_s))
    return facts


def _study_toml(results: StudyResults, seeds: Sequence[int]) -> str:
    """A study file with the same points, schemes and seeds, on the scenario of the first point."""
    manifest = results.manifest
    content = {
        "name": manifest.name,
        "title": manifest.title,
        "scenario": _SCENARIO_FILE,
        "schemes": manifest.schemes,
        "seeds": list(seeds),
        "metrics": manifest.metrics,
        "targets": manifest.targets,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in content.items()]
    for values in manifest.points if manifest.axes else []:
        lines += ["", "[[paired]]", *(f"{axis} = {json.dumps(values[axis])}" for axis in manifest.axes)]
    return "\n".join(lines) + "\n"


def _execution_flags(execution: Mapping[str, Any]) -> list[str]:
    """Only what the numbers depend on."""
    flags = []
    if execution.get("precision", "fp32") != "fp32":
        flags += ["--precision", str(execution["precision"])]
    return [*flags, "--fast"] if execution.get("fast") else flags


def _line(*words: str) -> str:
    return shlex.join(["wayfare", *words])


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
