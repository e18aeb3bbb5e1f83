"""One run: a scheme in the world of a scenario and a seed, with its records; begun, or taken up where it broke off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wayfare.engine import Compute, Place, Policy, Precision, Shelf, open_shelf
from wayfare.engine.compute import one_thread
from wayfare.errors import DivergenceError, InvariantError, RunError
from wayfare.identity import identity_of
from wayfare.learning.tasks import Task, forget_tasks, is_from_file, load_task
from wayfare.learning.tasks.division import Divided
from wayfare.methods import Method, Recipe, make_method, reject_edited
from wayfare.places import RUNS
from wayfare.records import (
    RunLock,
    RunRecord,
    RunWriter,
    Unfinished,
    complete,
    find_unfinished,
    read_run,
    reject_changes,
    reject_other_code,
    reopen,
    run_inputs,
)
from wayfare.records.layout import resume_call
from wayfare.scenario import Scenario
from wayfare.scenario.dump import digest
from wayfare.scenario.partition import OwnPartition
from wayfare.signals import StopRequest
from wayfare.simulator import Simulation, SimulationState
from wayfare.studies.arguments import checked_scenario, checked_seed
from wayfare.studies.keeping import Keeper, Safeguards, StoppedError
from wayfare.world import World, draw_world, last_common_round

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a run is carried out. It decides how long that takes, and rounding, but not what the run means."""

    engine: str = "auto"
    policy: Policy = "ahead"
    device: str = "auto"  # auto, cpu, cuda or cuda:NUMBER
    precision: Precision = "fp32"
    fast: bool = False  # speed may cost repeatability
    device_state: Place = "memory"  # where the vectors of error feedback lie between contacts
    safeguards: Safeguards = field(default_factory=Safeguards)
    keep_model: bool = True  # in the records; without, they have its hash and are as small as their tables

    def compute(self) -> Compute:
        return Compute.named(self.device, self.precision, fast=self.fast)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    folder: Path
    world: World
    scheme: Method
    identity: dict[str, Any]
    execution: Execution
    found: Unfinished | None


def run(
    scenario: Scenario,
    scheme: Recipe = "mads",
    *,
    seed: int = 0,
    out: Path | str = RUNS,
    task: Task | None = None,
    execution: Execution | None = None,
    on_round: Callable[[int], None] | None = None,
) -> RunRecord:
    """Run one scheme with one seed and read back its records; a task of one's own takes the place of the scenario's.

    An interrupted run resumes where it stopped, to the same bits. It is refused if its code or data changed since.
    """
    execution = execution or Execution()
    forget_tasks()
    scenario, seed = naming_task(checked_scenario(scenario), task), checked_seed(seed)
    resolved = make_method(scheme, scenario)
    folder = run_folder(scenario, resolved, seed, Path(out))
    return carry_out(folder, scenario, resolved, seed, task=task, execution=execution, on_round=on_round)


def carry_out(
    folder: Path,
    scenario: Scenario,
    scheme: Method,
    seed: int,
    *,
    task: Task | None = None,
    execution: Execution,
    on_round: Callable[[int], None] | None = None,
) -> RunRecord:
    """Begin a run in a folder, or go on with the one that is there unfinished."""
    compute = execution.compute()
    if task is None and is_from_file(scenario.learning):
        # One object for identity and world, so that the numbers are those of what is recorded.
        task = load_task(scenario.learning)
    stop, record = StopRequest(), None
    try:
        with one_thread(), RunLock(folder), _enough_memory(folder):
            found = None if execution.safeguards.fresh else find_unfinished(folder)
            reject_edited(scheme)
            identity = identity_of(scenario, scheme, task)
            if found is not None and found.is_complete:
                reject_other_code(found, identity)
                # It was ended between its last transaction and its name.
                complete(folder)
            else:
                world = draw_world(scenario, seed, task)  # type: ignore[arg-type]  # a task is hashed by what it is
                job = _Job(
                    folder=folder, world=world, scheme=scheme, identity=identity, execution=execution, found=found
                )
                with stop:
                    _simulate(job, compute, stop, on_round)
            record = read_run(folder)
    except StoppedError as stopped:
        _log.warning("%s", stopped)
    # Everything is saved and unlocked.
    stop.raise_again()
    if record is None:
        # Whoever handles the signal did not end the program, but the run did end.
        raise KeyboardInterrupt
    return record


def _simulate(job: _Job, compute: Compute, stop: StopRequest, on_round: Callable[[int], None] | None) -> None:
    world, safeguards = job.world, job.execution.safeguards
    keeper = Keeper(safeguards, stop, on_round, method=job.scheme, extend_from=last_common_round(world))
    state_of = world.scenario.fleet.devices, len(world.initial_model)
    with open_shelf(job.execution.device_state, compute, job.folder.parent, *state_of) as shelf:
        _conduct(job, compute, keeper, shelf)


def _conduct(job: _Job, compute: Compute, keeper: Keeper, shelf: Shelf) -> None:
    world = job.world
    simulation = Simulation(
        world,
        job.scheme,
        keeper,
        engine=job.execution.engine,
        policy=job.execution.policy,
        compute=compute,
        checks=job.execution.safeguards.checks,
        shelf=shelf,
    )
    execution = execution_record(job.execution, simulation.engine, compute)
    meta = run_inputs(world, job.scheme, job.identity, execution, compute.hardware)
    with _opened(job, meta) as (writer, state):
        if state is not None:
            simulation.restore(state)
        keeper.open(writer, simulation)
        try:
            outcome = simulation.run()
            keeper.refuse_state()
        except StoppedError:
            raise StoppedError(f"{job.folder}: stopped after round {writer.safe_round}, safe in a checkpoint") from None
        except DivergenceError as error:
            rate = world.scenario.learning.learning_rate
            raise DivergenceError(
                f"{job.folder}: {error}. {writer.saved_progress()} It diverges again there; `allow_divergence=True` "
                f"records it and continues, and a new run may need a learning.learning_rate below {rate:g}"
            ) from None
        except InvariantError as error:
            raise InvariantError(f"{job.folder}: {error}. {writer.saved_progress()}") from None
        writer.finish(outcome.model, world.scenario.rounds, keeper.elapsed_s, keep_model=job.execution.keep_model)


@contextmanager
def _opened(job: _Job, meta: dict[str, Any]) -> Iterator[tuple[RunWriter, SimulationState | None]]:
    """The records of a run, and the state from which it resumes; None for a new run."""
    if job.found is None:
        writer, state = RunWriter.begin(job.folder, job.world, meta), None
    else:
        reject_changes(job.found, meta)
        writer, state = reopen(job.found, job.world)
    with writer:
        yield writer, state


def execution_record(execution: Execution, engine: str, compute: Compute) -> dict[str, Any]:
    """What of the way a run is carried out decides its last bits."""
    return {
        "engine": engine,
        "policy": execution.policy,
        "device": compute.device.type,
        "precision": execution.precision,
        "fast": execution.fast,
    }


def naming_task(scenario: Scenario, task: Task | None) -> Scenario:
    """The scenario with the name of a task of one's own in it, and with its partition where the task has one."""
    if task is None:
        return scenario
    update: dict[str, Any] = {"task": task.name}
    if isinstance(task, Divided) and task.division is not None:
        update["partition"] = OwnPartition()
    return scenario.model_copy(update={"learning": scenario.learning.model_copy(update=update)})


def scenario_name_of(scenario: Scenario) -> str:
    """The name of the folder for runs of a scenario: its own, and eight characters that stand for all its numbers."""
    return f"{scenario.name}-{digest(scenario)}"


def run_name_of(scheme: str, seed: int) -> str:
    """The name of a run's folder: its scheme, which may have any name where a folder may not, and its seed."""
    return f"{''.join(letter if letter.isalnum() or letter in '._-' else '-' for letter in scheme)}-seed{seed}"


def run_folder(scenario: Scenario, scheme: Method, seed: int, out: Path) -> Path:
    """Where one run lies that belongs to no study."""
    return out / scenario_name_of(scenario) / run_name_of(scheme.name, seed)


@contextmanager
def _enough_memory(folder: Path) -> Iterator[None]:
    """A run that does not fit into memory ends with a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # PyTorch has an error of its own for a GPU, and only words for a processor.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else "no more to be had"
        raise RunError(
            f"{folder}: out of memory: {reason}. A smaller fleet.devices, rounds or network needs less; "
            f"checkpoints already written are safe: {resume_call(folder)}"
        ) from None
