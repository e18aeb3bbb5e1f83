"""One run: a scheme in the world of a scenario and a seed, with its records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from wayfare.engine import Compute, Place, Policy, Precision, open_shelf
from wayfare.learning.tasks import Task
from wayfare.places import RUNS
from wayfare.records import RunRecord, RunWriter, read_run
from wayfare.scenario import Scenario
from wayfare.scenario.dump import digest
from wayfare.schemes import Scheme, checked, make_scheme
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, Simulation, draw_world


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How local steps are computed. It decides how long a run takes, and rounding, but not what the run means."""

    engine: str = "auto"
    policy: Policy = "ahead"
    device: str = "auto"  # auto, cpu, cuda or cuda:NUMBER
    precision: Precision = "fp32"
    fast: bool = False  # speed may cost repeatability
    device_state: Place = "memory"  # where the vectors of error feedback lie between contacts


def run(
    scenario: Scenario,
    scheme: str | Scheme = "mads",
    *,
    seed: int = 0,
    out: Path | str = RUNS,
    task: Task | None = None,
    execution: Execution | None = None,
    on_round: Callable[[int], None] | None = None,
) -> RunRecord:
    """Run one scheme with one seed and read back its records; a task of one's own takes the place of the scenario's."""
    execution = execution or Execution()
    scenario = naming_task(scenario, task)
    resolved = make_scheme(scheme, scenario.control) if isinstance(scheme, str) else checked(scheme)
    compute = Compute.named(execution.device, execution.precision, fast=execution.fast)
    folder = run_folder(scenario, resolved, seed, Path(out))
    with _one_thread():
        started = time.perf_counter()
        world = draw_world(scenario, seed, task)  # type: ignore[arg-type]  # a task is hashed by what it is, not holds
        entries = len(world.initial_model)
        with (
            open_shelf(execution.device_state, compute, folder.parent, scenario.fleet.devices, entries) as shelf,
            RunWriter(folder, world, resolved) as writer,
        ):
            observer = _Reporting(writer, on_round) if on_round else writer
            simulation = Simulation(
                world,
                resolved,
                observer,
                engine=execution.engine,
                policy=execution.policy,
                compute=compute,
                shelf=shelf,
            )
            outcome = simulation.run()
            writer.finish(outcome.model, scenario.rounds, time.perf_counter() - started)
    return read_run(folder)


def naming_task(scenario: Scenario, task: Task | None) -> Scenario:
    """The scenario with the name of a task of one's own in it, so that its runs are told apart."""
    if task is None:
        return scenario
    return scenario.model_copy(update={"learning": scenario.learning.model_copy(update={"task": task.name})})


def comparison_folder(scenario: Scenario, out: Path) -> Path:
    """Where the runs of a scenario lie: its name, and eight characters that stand for all its numbers."""
    return out / f"{scenario.name}-{digest(scenario)}"


def run_folder(scenario: Scenario, scheme: Scheme, seed: int, out: Path) -> Path:
    """Where one run lies."""
    # A scheme may have any name; a folder may not.
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in scheme.name)
    return comparison_folder(scenario, out) / f"{name}-seed{seed}"


class _Reporting:
    """Hands everything to the writer, and every round to whoever shows progress."""

    def __init__(self, writer: RunWriter, on_round: Callable[[int], None]) -> None:
        self.on_contact: Callable[[ContactEvent], None] = writer.on_contact
        self.on_evaluation: Callable[[EvaluationEvent, Sequence[MetricEvent]], None] = writer.on_evaluation
        self._on_round = on_round

    def on_round(self, round_: int) -> None:
        self._on_round(round_)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for each process: runs are many and small, and sums come out the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
