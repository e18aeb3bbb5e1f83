"""Extends a run: the longer run reuses the rounds in which both are equal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.control import queue
from wayfare.device import DeviceState
from wayfare.errors import RunFolderError, ScenarioError
from wayfare.methods import Method
from wayfare.records import RunLock, RunRecord, RunWriter, final_folder, find_unfinished
from wayfare.records.checkpoints import DamagedError
from wayfare.records.layout import connect, stored_rows
from wayfare.records.schema import COLUMNS
from wayfare.records.unfinished import ValidCheckpoint, valid_checkpoints
from wayfare.scenario import Scenario, parse
from wayfare.studies.single import Execution, carry_out, run_folder
from wayfare.world import World, draw_world, world_digests


def extend(
    source: Path,
    meta: Mapping[str, Any],
    scenario: Scenario,
    scheme: Method,
    rounds: int,
    *,
    execution: Execution,
    on_round: Callable[[int], None] | None,
) -> RunRecord:
    """Run the scenario of a folder with more rounds, in a new folder; the shorter run stays unchanged."""
    if rounds < scenario.rounds:
        raise ScenarioError("rounds", rounds, f"must be at least {scenario.rounds}, the rounds of this run")
    if not scheme.is_extendable():
        rule = f"{scheme.name} may pace its energy over all {scenario.rounds} rounds of this run"
        raise ScenarioError("rounds", rounds, f"{rule}; start a new run")
    if scenario.learning.schedule != "constant":
        rule = f"learning.schedule = {scenario.learning.schedule!r} depends on the {scenario.rounds} rounds of this run"
        raise ScenarioError("rounds", rounds, f"{rule}; start a new run")
    longer = parse({**scenario.model_dump(mode="json"), "rounds": rounds})
    folder = run_folder(longer, scheme, meta["seed"], source.parent.parent)
    with RunLock(final_folder(source)), RunLock(folder):
        if find_unfinished(folder) is None:
            _copy(source, folder, meta, draw_world(scenario, meta["seed"]), draw_world(longer, meta["seed"]))
    return carry_out(folder, longer, scheme, meta["seed"], execution=execution, on_round=on_round)


def same_until(shorter: World, longer: World) -> int:
    """The last round up to which two worlds agree in every contact and channel; -1 if they differ from the start."""
    one, other = world_digests(shorter), world_digests(longer)
    if any(one[part] != other[part] for part in ("budgets", "samples", "initial model")):
        return -1
    rows = len(shorter.meets)
    columns = [
        (getattr(shorter.meets, name), getattr(longer.meets, name)[:rows])
        for name in ("round", "device", "contact_s", "distance_m")
    ]
    columns.append((shorter.gains_per_watt, longer.gains_per_watt[:rows]))
    columns.append((shorter.forecast_s, longer.forecast_s[:rows]))
    if any(len(mine) != len(theirs) for mine, theirs in columns):
        return -1
    differ = np.flatnonzero(np.any([mine != theirs for mine, theirs in columns], axis=0))
    return int(shorter.meets.round[differ[0]]) - 1 if len(differ) else shorter.scenario.rounds


def _copy(source: Path, folder: Path, meta: Mapping[str, Any], shorter: World, longer: World) -> None:
    """Start the longer run with the rounds that it has in common with the shorter one."""
    if world_digests(shorter) != meta.get("world"):
        raise RunFolderError(f"{source}: the drawn world or its files have changed since this run started")
    last = same_until(shorter, longer)
    try:
        with closing(connect(source)) as database:
            damaged: list[str] = []
            found = valid_checkpoints(source, database, damaged)
            usable = next((one for one in found if one.state.round <= last), None)
            if usable is None:
                raise RunFolderError(
                    f"{source}: has no checkpoint up to round {last}, the last round that a longer run has in common"
                    f"{''.join(f'; {note}' for note in damaged)}; `keep_checkpoint=True` keeps one"
                )
            _begin(folder, database, usable, meta, longer)
    except (OSError, sqlite3.Error, DamagedError, ValueError, TypeError) as error:
        raise RunFolderError(f"{source}: damaged: {error}") from None


def _begin(
    folder: Path, database: sqlite3.Connection, checkpoint: ValidCheckpoint, meta: Mapping[str, Any], world: World
) -> None:
    state, every = checkpoint.state, world.scenario.learning.evaluate_every_rounds
    found = stored_rows(database, "contacts", state.round)
    contacts = [dict(zip(COLUMNS["contacts"], row, strict=True)) for row in found]
    devices = _paced(contacts, state.devices, world.scenario.rounds)
    # Drop the evaluation of the shorter run's last round, unless it is due in the longer run too.
    rows = {
        table: [row for row in stored_rows(database, table, state.round) if row[0] % every == 0]
        for table in ("evaluations", "metrics")
    }
    described = {key: value for key, value in meta.items() if key not in ("status", "seal", "wall_s", "notes")}
    described |= {"scenario": world.scenario.model_dump(mode="json"), "world": world_digests(world)}
    with RunWriter.begin(folder, world, described) as writer:
        writer.write_rows({"contacts": [tuple(contact.values()) for contact in contacts], **rows})
        writer.checkpoint(replace(state, devices=devices), checkpoint.wall_s)


def _paced(contacts: list[dict[str, Any]], devices: list[DeviceState], rounds: int) -> list[DeviceState]:
    """Recompute the energy queue of every device at the pace of the longer run, in rows and states.

    Only schemes that ignore the queue can be extended, but their records must still contain the correct queue.
    """
    paces = [device.budget_joules / rounds for device in devices]
    backlogs, begun = [0.0] * len(devices), [1] * len(devices)
    for contact in contacts:
        device, round_ = contact["device"], contact["round"]
        backlog = queue.idle(backlogs[device], round_ - begun[device], paces[device])
        contact["backlog_joules"] = backlog
        backlogs[device] = queue.spend(backlog, contact["energy_joules"], paces[device])
        begun[device] = round_ + 1
    return [
        replace(device, backlog_joules=backlogs[number], backlog_round=begun[number])
        for number, device in enumerate(devices)
    ]
