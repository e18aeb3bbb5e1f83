"""How to repeat a study: files, exact commands, and versions."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wayfare.errors import InputError
from wayfare.methods import is_ours
from wayfare.progress import duration_text
from wayfare.scenario import parse
from wayfare.scenario.dump import to_toml, toml_value
from wayfare.studies.results import StudyResults
from wayfare.studies.store import Manifest
from wayfare.studies.study import load_study

_SCENARIO_FILE = "scenario.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Files to save, commands to run in their folder, and notes."""

    files: dict[str, str]
    commands: list[str]
    notes: list[str]


def recipe_of(results: StudyResults, meta: Mapping[str, Any]) -> Recipe:
    """The recipe of a run, a comparison or a study; ``meta`` is that of one of its runs."""
    manifest = results.manifest
    flags = _execution_flags(meta.get("execution", {}))
    notes = []
    foreign = [name for name in manifest.schemes if not is_ours(manifest.recipes.get(name, name))]
    if foreign:
        notes.append(f"You need the package or file that defines {', '.join(foreign)}.")
    if "file" in manifest.scenarios[0]["mobility"]:
        notes.append("You need the trace at the path in mobility.file.")
    files, commands = (_comparison if manifest.is_comparison else _study)(manifest, flags)
    return Recipe(files=files, commands=commands, notes=notes)


def _comparison(manifest: Manifest, flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    files, seeds = {_SCENARIO_FILE: to_toml(parse(manifest.scenarios[0]))}, _seeds(manifest)
    every = {(run.scheme, run.seed) for run in manifest.runs}
    if len(every) > 1 and seeds == list(range(len(seeds))) and len(every) == len(manifest.schemes) * len(seeds):
        schemes = ",".join(_texts(manifest))
        return files, [_line("compare", _SCENARIO_FILE, "--schemes", schemes, "--seeds", str(len(seeds)), *flags)]
    # One run, or not every scheme with every seed: one command per run.
    return files, [_run_line(_SCENARIO_FILE, manifest, scheme, seed, flags) for scheme, seed in sorted(every)]


def _study(manifest: Manifest, flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """A study file based on the scenario of the first point; if it differs from the study, one command per run."""
    name = f"{manifest.name}.toml"
    files = {_SCENARIO_FILE: to_toml(parse(manifest.scenarios[0])), name: _study_toml(manifest)}
    if _points_of(files, name) == [_content(scenario) for scenario in manifest.scenarios]:
        return files, [_line("sweep", name, *flags)]
    files = {f"scenario-{number}.toml": to_toml(parse(one)) for number, one in enumerate(manifest.scenarios, start=1)}
    return files, [
        _run_line(file, manifest, scheme, seed, flags)
        for file in files
        for scheme in manifest.schemes
        for seed in _seeds(manifest)
    ]


def _seeds(manifest: Manifest) -> list[int]:
    return sorted({run.seed for run in manifest.runs})


def _texts(manifest: Manifest) -> list[str]:
    return [manifest.recipes.get(name, name) for name in manifest.schemes]


def _points_of(files: Mapping[str, str], study: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        try:
            plan = load_study(Path(folder) / study)
        except InputError:
            return []
    return [_content(point.scenario.model_dump(mode="json")) for point in plan.points]


def _content(scenario: dict[str, Any]) -> dict[str, Any]:
    """The fields of a scenario, except its name and the path of its trace."""
    mobility = {key: value for key, value in scenario["mobility"].items() if key != "file"}
    return {key: value for key, value in scenario.items() if key not in ("name", "schemes")} | {"mobility": mobility}


def made_with(meta: Mapping[str, Any], walls_s: Sequence[float]) -> dict[str, str]:
    facts = {str(name): str(version) for name, version in meta.get("versions", {}).items()}
    facts["first run started"] = str(meta.get("started", "unknown"))
    facts["time of all runs"] = duration_text(sum(walls_s))
    return facts


def _study_toml(manifest: Manifest) -> str:
    content = {
        "name": manifest.name,
        "title": manifest.title,
        "scenario": _SCENARIO_FILE,
        "schemes": _texts(manifest),
        "seeds": _seeds(manifest),
        "metrics": manifest.metrics,
        "targets": manifest.targets,
    }
    lines = [f"{key} = {toml_value(value)}" for key, value in content.items()]
    for point, values in enumerate(manifest.points if manifest.axes else []):
        label = [f"label = {toml_value(manifest.point_name(point))}"] if manifest.labelled else []
        lines += ["", "[[paired]]", *label, *(f"{axis} = {toml_value(values[axis])}" for axis in manifest.axes)]
    return "\n".join(lines) + "\n"


def _execution_flags(execution: Mapping[str, Any]) -> list[str]:
    """The flags that affect results."""
    flags = []
    if execution.get("precision", "fp32") != "fp32":
        flags += ["--precision", str(execution["precision"])]
    return [*flags, "--fast"] if execution.get("fast") else flags


def _run_line(file: str, manifest: Manifest, scheme: str, seed: int, flags: Sequence[str]) -> str:
    return _line("run", file, "--scheme", manifest.recipes.get(scheme, scheme), "--seed", str(seed), *flags)


def _line(*words: str) -> str:
    return shlex.join(["wayfare", *words])
