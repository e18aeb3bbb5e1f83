"""The overhead of a study beyond its simulations, and its use of the cores.

    python benchmarks/study_overhead.py [--runs 60] [--jobs 2]       overhead of a run: start, data, records
    python benchmarks/study_overhead.py --study schemes-by-speed     a whole study, with the use of its workers

Overhead: a study of short runs, as a user starts it. It is the CPU time of the command and its workers, minus that of
the bare simulations (same worlds and schemes, without records), per run. Records grow with a run, so those of one
whole run of the default preset are measured too. The goal is 0.5 s of CPU time per run.

Use: the share of the wall time in which the workers ran on a core, and in which they ran or waited for one. On
a machine with other load only the second depends on the study alone. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import wayfare
from wayfare.methods import make_method
from wayfare.records import RunWriter, read_run
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import draw_world

GOAL_S = 0.5
SCHEMES = ("mads", "afl-spar:paced", "afl")
ROUNDS = 40


class Nobody:
    """Ignores all events."""

    def on_contact(self, event: ContactEvent) -> None:
        pass

    def on_relay(self, event: RelayEvent) -> None:
        pass

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        pass

    def on_round(self, round_: int) -> None:
        pass


def bare_cpu_s(seeds: int) -> float:
    """CPU seconds of the simulations alone, without drawing worlds."""
    scenario = wayfare.load("fashion-small", [f"rounds={ROUNDS}"])
    spent_s = 0.0
    for seed in range(seeds):
        world = draw_world(scenario, seed)
        for scheme in SCHEMES:
            simulation = Simulation(world, make_method(scheme, scenario), Nobody())
            began = time.process_time()
            simulation.run()
            spent_s += time.process_time() - began
    return spent_s


def sweep_cpu_s(seeds: int, jobs: int) -> float:
    """CPU seconds of a sweep and its workers, from the start of the command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "short.toml"
        study.write_text(f"schemes = {json.dumps(SCHEMES)}\nseeds = {seeds}\n[set]\nrounds = {ROUNDS}\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command(str(study), jobs, folder), check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def records_cpu_s() -> float:
    """CPU seconds that one run of the default preset spends on its records, including reading them back."""
    spent_s = 0.0

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent_s
            began = time.process_time()
            result = method(*arguments, **options)
            spent_s += time.process_time() - began
            return result

        return call

    names = ("__init__", "on_contact", "on_evaluation", "on_round", "finish")
    patches = [patch.object(RunWriter, name, timed(getattr(RunWriter, name))) for name in names]
    patches.append(patch("wayfare.studies.single.read_run", timed(read_run)))
    for each in patches:
        each.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            wayfare.run(wayfare.load(), "mads", out=folder)
    finally:
        for each in patches:
            each.stop()
    return spent_s


def overhead(runs: int, jobs: int) -> dict[str, object]:
    torch.set_num_threads(1)
    seeds = max(round(runs / len(SCHEMES)), 1)
    count = seeds * len(SCHEMES)
    bare_cpu_s(1)  # loads the data and warms up
    bare_s, sweep_s, records_s = bare_cpu_s(seeds), sweep_cpu_s(seeds, jobs), records_cpu_s()
    return {
        "runs": count,
        "jobs": jobs,
        "rounds": ROUNDS,
        "sweep_cpu_s": round(sweep_s, 2),
        "bare_cpu_s": round(bare_s, 2),
        "overhead_cpu_s_per_run": round((sweep_s - bare_s) / count, 3),
        "records_cpu_s_of_a_whole_run": round(records_s, 3),
        "goal_s": GOAL_S,
    }


def use_of_workers(study: str, jobs: int, out: Path) -> dict[str, object]:
    """Start a study and sample its workers twice a second until it ends."""
    began, idle_before = time.perf_counter(), other_cpu_s()
    clocks: dict[int, tuple[float, float]] = {}
    with subprocess.Popen(command(study, jobs, str(out)), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for worker in children(process.pid):
                clocks[worker] = clock(worker) or clocks.get(worker, (0.0, 0.0))
            time.sleep(0.5)
    wall_s = time.perf_counter() - began
    ran_s, waited_s = (sum(column) for column in zip(*clocks.values(), strict=True))
    return {
        "study": study,
        "exit_code": process.returncode,
        "workers": len(clocks),
        "wall_s": round(wall_s, 1),
        "on_a_core": round(ran_s / wall_s / jobs, 3),
        "on_a_core_or_in_line": round((ran_s + waited_s) / wall_s / jobs, 3),
        "cores_used_by_all_programs": round((other_cpu_s() - idle_before) / wall_s, 2),
    }


def command(study: str, jobs: int, out: str) -> list[str]:
    return [sys.executable, "-m", "wayfare", "sweep", study, "--jobs", str(jobs), "--out", out, "--json"]


def children(pid: int) -> list[int]:
    """The worker processes of a driver, without Python's resource tracker."""
    try:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [child for child in found if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    except OSError:
        return []


def clock(pid: int) -> tuple[float, float] | None:
    """Seconds on a core, and waiting for one, of all threads of a process."""
    try:
        tasks = [(task / "schedstat").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return None
    return sum(int(task[0]) for task in tasks) / 1e9, sum(int(task[1]) for task in tasks) / 1e9


def other_cpu_s() -> float:
    """Busy seconds of the machine's cores since it started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--study", help="run this study instead, and watch its workers")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="the parent of the study's folder")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.study:
        figures = use_of_workers(arguments.study, arguments.jobs, arguments.out)
    else:
        figures = overhead(arguments.runs, arguments.jobs)
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
