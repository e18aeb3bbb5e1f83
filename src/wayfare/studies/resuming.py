"""Resumes interrupted runs by their folders, and extends runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from wayfare.engine import Policy
from wayfare.engine.compute import checked_precision
from wayfare.errors import RunFolderError, ScenarioError, WayfareError
from wayfare.learning.tasks import forget_tasks
from wayfare.methods import Method, make_method
from wayfare.records import RunRecord, final_folder, find_unfinished, read_run
from wayfare.records.layout import connect, partial_folder, read_meta
from wayfare.records.schema import FILE
from wayfare.scenario import Scenario, parse
from wayfare.scenario.difference import differences
from wayfare.scenario.load import with_overrides
from wayfare.studies.extend import extend
from wayfare.studies.jobs import move_finished
from wayfare.studies.keeping import Safeguards
from wayfare.studies.single import Execution, carry_out
from wayfare.studies.store import home_of


def unfinished_runs(folder: Path) -> list[Path]:
    """The unfinished runs at or below a folder, in the order of their names."""
    named = final_folder(folder)
    if partial_folder(named).is_dir():
        return [named]
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such run or folder of runs")
    if (folder / FILE).is_file():
        raise RunFolderError(f"{folder}: this run is finished")
    found = [final_folder(file.parent) for file in sorted(folder.rglob(FILE)) if file.parent.name.endswith(".partial")]
    if not found:
        raise RunFolderError(f"{folder}: contains no unfinished run; runs that never started begin with their study")
    return found


def resume(
    folder: Path | str,
    *,
    overrides: Sequence[str] = (),
    safeguards: Safeguards | None = None,
    on_round: Callable[[int], None] | None = None,
) -> RunRecord:
    """Resume a run; the result is bit-identical. With more ``rounds``, extend it in a new folder."""
    forget_tasks()
    folder = final_folder(Path(folder))
    meta = recorded_meta(folder, finished_too=bool(overrides))
    scenario, scheme, execution = recorded_inputs(folder, meta)
    execution = replace(execution, safeguards=safeguards or Safeguards())
    wanted = with_overrides(scenario, overrides)
    _reject_other_overrides(folder, scenario, wanted)
    if wanted.rounds != scenario.rounds:
        source = partial_folder(folder) if partial_folder(folder).is_dir() else folder
        return extend(source, meta, scenario, scheme, wanted.rounds, execution=execution, on_round=on_round)
    if not partial_folder(folder).is_dir():
        return read_run(folder)
    record = carry_out(folder, scenario, scheme, meta["seed"], execution=execution, on_round=on_round)
    home = home_of(folder)
    move_finished(folder, home)
    return record if home == folder else read_run(home)


def _reject_other_overrides(folder: Path, scenario: Scenario, wanted: Scenario) -> None:
    same_length = wanted.model_copy(update={"rounds": scenario.rounds})
    changed = differences(scenario.model_dump(mode="json"), same_length.model_dump(mode="json"))
    if changed:
        raise RunFolderError(
            f"{folder}: only `rounds` of a run may change, not {'; '.join(changed)}. Start a new run for other settings"
        )


def recorded_meta(folder: Path, *, finished_too: bool = False) -> dict[str, Any]:
    found = find_unfinished(folder)
    if found is not None:
        return found.meta
    if partial_folder(folder).is_dir():
        raise RunFolderError(f"{folder}: ended before it saved anything; start it again")
    if not (folder / FILE).is_file():
        raise RunFolderError(f"{folder}: not a run (no {FILE} in it)")
    if not finished_too:
        raise RunFolderError(f"{folder}: this run is finished")
    try:
        with closing(connect(folder)) as database:
            return read_meta(database)
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{folder / FILE}: damaged, or not the records of a run: {error}") from None


def recorded_inputs(folder: Path, meta: Mapping[str, Any]) -> tuple[Scenario, Method, Execution]:
    """Scenario, scheme and execution of a run, from its records."""
    try:
        scenario = parse(meta["scenario"])
        how = meta["execution"]
        execution = Execution(
            engine=str(how["engine"]),
            policy=how["policy"],
            device=str(how["device"]),
            precision=checked_precision(how["precision"]),
            fast=bool(how["fast"]),
        )
        if not isinstance(meta["seed"], int) or execution.policy not in get_args(Policy):
            raise TypeError(f"seed = {meta['seed']!r}, policy = {execution.policy!r}")
    except (WayfareError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{folder}: its records are damaged: {error}; restart it with `fresh=True`") from None
    try:
        return scenario, make_method(str(meta.get("scheme_text")), scenario), execution
    except ScenarioError as error:
        raise RunFolderError(
            f"{folder}: {error}. To resume your own scheme, run the program that defines it again"
        ) from None
