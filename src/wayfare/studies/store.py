"""The folder of a study: its manifest, finished runs, and locks of running ones.

::

    <study>/
      study.json          the manifest: settings and runs of the study
      runs/<run>/         finished runs, each named after its scheme, seed and key
      runs/<run>.error.txt  why a run failed
      work/<run>          unfinished runs
      work/<key>.lock     a lock of the process that performs the run; it ends with the process
      work/<run>.lock     a lock of the process that writes it

Studies with common runs may share a pool, a folder that holds `runs` and `work` for all of them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from wayfare.errors import RunFolderError
from wayfare.files import lock, write_atomically
from wayfare.learning.tasks import model_of
from wayfare.places import STUDY_FILE
from wayfare.records.layout import partial_folder
from wayfare.records.lock import lock_file
from wayfare.studies.cost import relative_cost
from wayfare.studies.jobs import Claim, Job, error_file, is_finished
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution, run_name_of
from wayfare.studies.study import USUAL_METRICS, Plan, Point

_VERSION = 1
_POINT = "point"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    key: str
    point: int
    scheme: str
    seed: int
    cost: float  # relative to other runs

    @property
    def folder_name(self) -> str:
        return f"{run_name_of(self.scheme, self.seed)}-{self.key}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The settings and runs of a study: everything needed to read its folder.

    Points that differ only in settings that a scheme does not use share the runs of that scheme. Each point has an
    entry for them, with the same key.
    """

    name: str
    title: str
    axes: list[str]
    points: list[dict[str, Any]]  # the values of every point
    scenarios: list[dict[str, Any]]
    schemes: list[str]
    metrics: list[str]
    targets: list[float]
    runs: list[PlannedRun]
    labels: list[str] = field(default_factory=list)  # of the points; empty without labels
    labelled: list[str] = field(default_factory=list)  # the axes that labels replace
    recipes: dict[str, str] = field(default_factory=dict)  # compositions of schemes

    @cached_property
    def places(self) -> dict[str, list[PlannedRun]]:
        """The runs by key, one entry for each point that has the run."""
        found: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(run.key, []).append(run)
        return found

    @property
    def distinct(self) -> list[PlannedRun]:
        """Every run once, with the first point that has it."""
        return [places[0] for places in self.places.values()]

    def is_shared(self, run: PlannedRun) -> bool:
        """Whether several points have this run."""
        return len(self.places[run.key]) > 1

    @property
    def is_comparison(self) -> bool:
        """Whether the study is a comparison: one point, the usual metrics, no targets."""
        return not self.axes and not self.targets and self.metrics == list(USUAL_METRICS)

    @property
    def varies(self) -> list[str]:
        """The displayed axes; labelled axes appear as one axis, `point`."""
        return [axis for axis in self.axes if axis not in self.labelled] + ([_POINT] if self.labelled else [])

    def place_of(self, point: int) -> dict[str, Any]:
        everything = self.points[point] | ({_POINT: self.labels[point]} if self.labelled else {})
        return {axis: everything[axis] for axis in self.varies}

    def point_name(self, point: int, axes: Sequence[str] | None = None) -> str:
        """The name of a point, from all axes or some, with the last part of each field's name."""
        place = self.place_of(point)
        return ", ".join(
            value_text(place[axis]) if axis == _POINT else f"{axis.split('.')[-1]} {value_text(place[axis])}"
            for axis in (self.varies if axes is None else axes)
        )

    def run_name(self, run: PlannedRun) -> str:
        places = [self.place_of(one.point) for one in self.places[run.key]]
        alike = [axis for axis in self.varies if all(place[axis] == places[0][axis] for place in places)]
        name = ", ".join(part for part in (run.scheme, self.point_name(run.point, alike), f"seed {run.seed}") if part)
        return f"{name} ({len(places)} points)" if len(places) > 1 else name


def keys_at(plan: Plan, point: Point, name: str, execution: Execution) -> Iterator[tuple[int, str]]:
    """The seeds and keys of a scheme's runs at a point."""
    scheme = plan.scheme_at(point, name)
    for seed in plan.seeds:
        yield seed, run_key(point.scenario, scheme, seed, execution, plan.task)


def distinct_runs(plan: Plan, execution: Execution) -> int:
    """The number of runs of a study, found without building its networks."""
    return len(
        {key for point in plan.points for name in plan.schemes for _, key in keys_at(plan, point, name, execution)}
    )


def manifest_of(plan: Plan, execution: Execution) -> Manifest:
    runs = []
    for index, point in enumerate(plan.points):
        model = plan.task.model if plan.task else model_of(point.scenario.learning)
        for name in plan.schemes:
            cost = relative_cost(point.scenario, plan.scheme_at(point, name), model.parameters)
            for seed, key in keys_at(plan, point, name, execution):
                runs.append(PlannedRun(key=key, point=index, scheme=name, seed=seed, cost=cost))
    return Manifest(
        name=plan.study.name,
        title=plan.study.title,
        axes=plan.axes,
        points=[dict(point.values) for point in plan.points],
        scenarios=[point.scenario.model_dump(mode="json") for point in plan.points],
        schemes=plan.schemes,
        metrics=list(plan.study.metrics),
        targets=list(plan.study.targets),
        runs=runs,
        labels=[point.label for point in plan.points] if plan.labelled else [],
        labelled=plan.labelled,
        recipes={name: recipe for name, recipe in plan.recipes.items() if isinstance(recipe, str)},
    )


class StudyFolder:
    """A study on disk. Several processes may use it at the same time."""

    def __init__(self, path: Path, pool: Path | None = None) -> None:
        self.path = path
        self._home = pool or path
        self._locks: dict[str, IO[str]] = {}

    def write(self, manifest: Manifest) -> None:
        """Write the manifest; the last process to start overwrites it."""
        # A relative path, so that studies and their pool can be moved together.
        pool = None if self._home == self.path else os.path.relpath(self._home, self.path)
        text = json.dumps({"version": _VERSION, "pool": pool, **asdict(manifest)}, indent=1)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self._home / "runs").mkdir(parents=True, exist_ok=True)
            (self._home / "work").mkdir(exist_ok=True)
            write_atomically(self.path / STUDY_FILE, text)
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot write here: {error.strerror}") from None

    def read(self) -> Manifest:
        """Read the manifest, and use its pool from then on."""
        file = self.path / STUDY_FILE
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data.pop("version") != _VERSION:
                raise RunFolderError(f"{file}: has another version; this Wayfare reads {_VERSION}")
            pool = data.pop("pool", None)
            self._home = self.path / pool if pool else self.path
            return Manifest(**data | {"runs": [PlannedRun(**run) for run in data["runs"]]})
        except OSError as error:
            raise RunFolderError(f"{file}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{file}: not a study, or damaged: {error}") from None

    def run_folder(self, run: PlannedRun) -> Path:
        return self._home / "runs" / run.folder_name

    def is_finished(self, run: PlannedRun) -> bool:
        return is_finished(self.run_folder(run))

    def error_file(self, run: PlannedRun) -> Path:
        return error_file(self.run_folder(run))

    def job(self, plan: Plan, manifest: Manifest, run: PlannedRun, cost: float) -> Job:
        point = plan.points[run.point]
        return Job(
            name=manifest.run_name(run),
            scenario=point.scenario,
            scheme=plan.scheme_at(point, run.scheme),
            seed=run.seed,
            work=self._work(run),
            folder=self.run_folder(run),
            cost=cost,
            key=run.key,
        )

    def claim(self, run: PlannedRun, *, again: bool = False) -> Claim:
        """Try to lock a run for this process; with ``again`` also a finished one."""
        if not again and self.is_finished(run):
            return "done"
        claim = self._claim_file(run).open("a+", encoding="utf-8")
        try:
            lock(claim.fileno())
        except BlockingIOError:
            claim.close()
            return "busy"
        # Another process may have finished it between the two checks.
        if not again and self.is_finished(run):
            claim.close()
            return "done"
        self._locks[run.key] = claim
        return "mine"

    def release(self, run: PlannedRun) -> None:
        self._locks.pop(run.key).close()
        if self.is_finished(run):
            self.clear(run)

    def clear(self, run: PlannedRun) -> None:
        """Remove leftovers of a finished run, perhaps of a process that was killed."""
        for left in (self._work(run), partial_folder(self._work(run))):
            shutil.rmtree(left, ignore_errors=True)
        # Safe only because the run is finished: a process that locks the old file checks this first.
        for lock_left in (self._claim_file(run), lock_file(self._work(run))):
            lock_left.unlink(missing_ok=True)

    def _work(self, run: PlannedRun) -> Path:
        return self._home / "work" / run.folder_name

    def _claim_file(self, run: PlannedRun) -> Path:
        return self._home / "work" / f"{run.key}.lock"


def home_of(work: Path) -> Path:
    """The final folder of a run in a study's work folder; the folder itself for any other run."""
    runs = work.parent.parent / "runs"
    return runs / work.name if work.parent.name == "work" and runs.is_dir() else work


def value_text(value: Any) -> str:
    """The displayed value of a point; a table appears as its kind."""
    if isinstance(value, dict):
        return str(value.get("model") or value.get("kind") or json.dumps(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
