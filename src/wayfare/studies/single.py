"""Starts or resumes one run: a scheme in the world of a scenario and a seed, with its records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from wayfare.engine import Compute, Place, Policy, Precision, Shelf, open_shelf
from wayfare.errors import DivergenceError, InvariantError, RunError, ScenarioError
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
    reject_other_record,
    reopen,
    run_inputs,
)
from wayfare.records.layout import resume_call
from wayfare.scenario import Scenario
from wayfare.scenario.dump import digest
from wayfare.scenario.model import NO_BACKBONE
from wayfare.scenario.partition import OwnPartition
from wayfare.signals import StopRequest
from wayfare.simulator import Simulation, SimulationState
from wayfare.studies.arguments import checked_scenario, checked_seed, checked_task
from wayfare.studies.keeping import Keeper, Safeguards, StoppedError
from wayfare.threads import one_thread
from wayfare.world import World, draw_world, last_common_round, world_for

_log = logging.getLogger("wayfare")

# Of several threads that need the same world, one draws it.
_drawing = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a run is executed. This affects its speed and rounding, but not its meaning."""

    engine: str = "auto"
    policy: Policy = "ahead"
    device: str = "auto"  # auto, cpu, cuda or cuda:NUMBER
    precision: Precision = "fp32"
    fast: bool = False  # faster, but repeats may not be bit-identical
    device_state: Place = "memory"  # where the devices' state is between contacts
    safeguards: Safeguards = field(default_factory=Safeguards)
    keep_model: bool = True  # record the final model, not only its hash

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
    """Run one scheme with one seed and return its records. ``task`` replaces the scenario's task.

    An interrupted run resumes where it stopped, and the result is bit-identical. If its code or data have changed, or
    those of a finished run that this one would replace, it raises RunFolderError.
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
    """Start a run in a folder, or resume the unfinished run there. SIGINT or SIGTERM stops it after its round."""
    stop, record = StopRequest(), None
    try:
        record = carry_out_until(
            stop, folder, scenario, scheme, seed, task=task, execution=execution, on_round=on_round
        )
    except StoppedError as stopped:
        _log.warning("%s", stopped)
    # Everything is saved and unlocked.
    stop.raise_again()
    if record is None:
        # The signal's handler did not end the program, but the run has ended.
        raise KeyboardInterrupt
    return record


def carry_out_until(
    stop: StopRequest,
    folder: Path,
    scenario: Scenario,
    scheme: Method,
    seed: int,
    *,
    task: Task | None = None,
    execution: Execution,
    on_round: Callable[[int], None] | None = None,
) -> RunRecord:
    """As `carry_out`, in any thread; a request to stop raises StoppedError."""
    compute = execution.compute()
    if task is None and is_from_file(scenario.learning):
        # One object for identity and world, so that the recorded identity belongs to the results.
        task = load_task(scenario.learning)
    with one_thread(), RunLock(folder), _enough_memory(folder):
        found = None if execution.safeguards.fresh else find_unfinished(folder)
        reject_edited(scheme)
        identity = identity_of(scenario, scheme, task)
        if found is not None and found.is_complete:
            reject_other_code(found, identity)
            # It was interrupted between its last transaction and the renaming.
            complete(folder)
        else:
            if found is None and not execution.safeguards.fresh:
                reject_other_record(folder, identity)
            with _drawing:
                drawn = draw_world(scenario, seed, task)  # type: ignore[arg-type]  # tasks are hashed by identity
            world = world_for(drawn, scheme)
            job = _Job(folder=folder, world=world, scheme=scheme, identity=identity, execution=execution, found=found)
            with stop, compute.own_stream():
                _simulate(job, compute, stop, on_round)
        return read_run(folder)


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
    choice = simulation.choice
    execution = execution_record(job.execution, choice.name, compute)
    meta = run_inputs(world, job.scheme, job.identity, execution, compute.hardware)
    if choice.reason is not None:
        meta["engine_reason"] = choice.reason
        _say_once(f"{choice.reason}; using the engine {choice.name}")
    with _opened(job, meta) as (writer, state):
        if state is not None:
            simulation.restore(state)
        keeper.open(writer, simulation)
        try:
            outcome = simulation.run()
            keeper.reject_changed_parts()
        except StoppedError:
            raise StoppedError(
                f"{job.folder}: stopped; a checkpoint holds everything up to round {writer.safe_round}"
            ) from None
        except DivergenceError as error:
            rate = world.scenario.learning.learning_rate
            raise DivergenceError(
                f"{job.folder}: {error}. {writer.saved_progress()} A resumed run diverges again, unless "
                f"`allow_divergence=True` lets it continue; a new run may need a learning.learning_rate below {rate:g}"
            ) from None
        except InvariantError as error:
            raise InvariantError(f"{job.folder}: {error}. {writer.saved_progress()}") from None
        rule = job.scheme.privacy
        writer.finish(
            outcome.model,
            world.scenario.rounds,
            keeper.elapsed_s,
            privacy=None if rule is None else asdict(rule.spent([state.releases for state in outcome.states])),
            keep_model=job.execution.keep_model,
        )


@cache
def _say_once(message: str) -> None:
    """Log what is equal in all runs of a comparison."""
    _log.warning("%s", message)


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
    """The execution settings that affect the last bits of the results."""
    return {
        "engine": engine,
        "policy": execution.policy,
        "device": compute.device.type,
        "precision": execution.precision,
        "fast": execution.fast,
    }


def naming_task(scenario: Scenario, task: Task | None) -> Scenario:
    """The scenario with the name of your own task, and with its partition if the task has one."""
    if task is None:
        return scenario
    checked_task(task)
    if scenario.learning.backbone != NO_BACKBONE:
        rule = (
            "does not apply to your own task; compute the features yourself, or make the backbone part of its network"
        )
        raise ScenarioError("learning.backbone", scenario.learning.backbone, rule)
    update: dict[str, Any] = {"task": task.name}
    if isinstance(task, Divided) and task.division is not None:
        update["partition"] = OwnPartition()
    return scenario.model_copy(update={"learning": scenario.learning.model_copy(update=update)})


def scenario_name_of(scenario: Scenario) -> str:
    """The name of the folder for runs of a scenario: the scenario's name and a hash of its fields."""
    return f"{scenario.name}-{digest(scenario)}"


def run_name_of(scheme: str, seed: int) -> str:
    """The name of a run's folder: the scheme, without characters that are invalid in folders, and the seed."""
    return f"{''.join(letter if letter.isalnum() or letter in '._-' else '-' for letter in scheme)}-seed{seed}"


def run_folder(scenario: Scenario, scheme: Method, seed: int, out: Path) -> Path:
    """The folder of a single run outside a study."""
    return out / scenario_name_of(scenario) / run_name_of(scheme.name, seed)


@contextmanager
def _enough_memory(folder: Path) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # PyTorch has an exception class for a GPU, but only a message for a CPU.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        reason = f": {str(error).splitlines()[0][:200]}" if str(error) else ""
        raise RunError(
            f"{folder}: out of memory{reason}. Use a smaller fleet.devices, rounds or network, or resume from the last "
            f"checkpoint with {resume_call(folder)}"
        ) from None
