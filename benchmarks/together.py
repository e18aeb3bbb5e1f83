"""A study of eight runs on one GPU: one after another, then 2, 3 and 4 at a time.

    python benchmarks/together.py [--rounds 4000] [--speed 20] [--at-once 2 3 4] [--precision tf32] [--commands]
                                  [--json FILE]

The runs are those of `full_run.py`: 20 devices, ResNet-9, random images of the size of CIFAR-10. MADS-RD and MADS
alternate, each with four seeds. The records must be bit-identical. Graphs are captured and kernels compiled in short
runs before the clock starts, and all measurements share them, so runs one after another do not pay for them eight
times. The goal is 0.75 of the time of the runs one after another.

`--commands` also measures what a user has without a study: eight processes, one after another, each with its start-up.
Kernels are compiled before, and drawing the images, which a user loads, does not count. The time of the study then
includes one start-up, that of a process with a run of one round.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import wayfare
from full_run import FIRST_ROUNDS, random_images
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.sharing import sharing
from wayfare.studies import Execution
from wayfare.studies.jobs import Job, Queue, Shared, conduct
from wayfare.studies.local import InThisProcess
from wayfare.studies.together import Threads
from wayfare.world import draw_world

GOAL = 0.75
SCHEMES = ("mads-rd", "mads")
RUNS = 8


def jobs_of(scenario: Scenario, folder: Path) -> list[Job]:
    names = [(SCHEMES[number % 2], number // 2) for number in range(RUNS)]
    return [
        Job(
            name=f"{scheme}, seed {seed}",
            scenario=scenario,
            scheme=make_method(scheme, scenario),
            seed=seed,
            work=folder / f"{scheme}-{seed}",
            folder=folder / f"{scheme}-{seed}",
        )
        for scheme, seed in names
    ]


def seconds_of(jobs: list[Job], shared: Shared, at_once: int = 1) -> float:
    backend = Threads(shared, at_once) if at_once > 1 else InThisProcess(shared)
    began = time.perf_counter()
    failures = conduct(Queue(jobs), backend, on_finished=lambda index, record: None)
    took_s = time.perf_counter() - began
    for failure in failures:
        raise RuntimeError(f"{failure.job.name}: {failure.reason}; see {failure.job.error_file}") from failure.error
    return took_s


def records(jobs: list[Job]) -> list[object]:
    """Everything that the runs recorded but the clock, with the hashes of the final models."""
    found: list[object] = []
    for job in jobs:
        with closing(sqlite3.connect(job.folder / "run.sqlite")) as database:
            found += [database.execute(f"SELECT * FROM {table}").fetchall() for table in ("contacts", "evaluations")]
            found.append(database.execute("SELECT value FROM meta WHERE key = 'model_sha256'").fetchall())
    return found


def measured(
    scenario: Scenario, shared: Shared, at_once: list[int], folder: Path, note: Callable[[str], None]
) -> dict[str, Any]:
    def times(number: int) -> tuple[float, list[object]]:
        jobs = jobs_of(scenario, folder / str(number))
        return seconds_of(jobs, shared, number), records(jobs)

    alone_s, expected = times(1)
    note(f"one after another: {alone_s:.1f} s, {1e3 * alone_s / RUNS / scenario.rounds:.2f} ms a round")
    together: dict[str, dict[str, Any]] = {}
    for number in at_once:
        took_s, found = times(number)
        same = found == expected
        together[str(number)] = {"seconds": round(took_s, 2), "ratio": round(took_s / alone_s, 3), "same_bits": same}
        note(
            f"{number} at a time: {took_s:.1f} s, ratio {took_s / alone_s:.3f} (goal {GOAL}), "
            f"{1e3 * took_s / RUNS / scenario.rounds:.2f} ms a round, "
            f"{'the same bits' if same else 'DIFFERENT RECORDS'}"
        )
    return {"rounds": scenario.rounds, "runs": RUNS, "alone_s": round(alone_s, 2), "together": together}


def commands(at_once: list[int], note: Callable[[str], None]) -> dict[str, Any]:
    """The seconds of whole processes, which get the options of this one."""

    def seconds(number: int, *runs: int) -> float:
        options = [word for word in sys.argv[1:] if word != "--commands"]
        mine = ["--at-once", str(number), "--only", *map(str, runs)]
        began = time.perf_counter()
        subprocess.run([sys.executable, __file__, *options, *mine], check=True)
        return time.perf_counter() - began

    # Compiles kernels, and brings files into memory.
    seconds(1, 0)
    alone_s = [seconds(1, run) for run in range(RUNS)]
    note(f"eight commands: {sum(alone_s):.1f} s, from {min(alone_s):.1f} to {max(alone_s):.1f} s each")
    together_s = {number: seconds(number, *range(RUNS)) for number in at_once}
    for number, took_s in together_s.items():
        note(f"one command, {number} at a time: {took_s:.1f} s, ratio {took_s / sum(alone_s):.3f} (goal {GOAL})")
    return {"runs": RUNS, "alone_s": alone_s, "together_s": together_s}


def write(figures: dict[str, Any], file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--speed", type=float, default=20.0, help="of the devices, in m/s")
    parser.add_argument("--evaluate-every", type=int, default=100, help="rounds between evaluations")
    parser.add_argument("--at-once", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--commands", action="store_true", help="measure commands with their start-up")
    parser.add_argument("--only", type=int, nargs="+", help="run these runs without measuring anything")
    parser.add_argument("--small", action="store_true", help="a small network on embedded data, to try this script")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.commands:
        figures = commands(arguments.at_once, lambda line: print(line, flush=True))
        write(figures, arguments.json)
        return
    torch.set_num_threads(1)
    preset = "fashion-small" if arguments.small else "paper-cifar10-waypoint"
    scenario = wayfare.load(
        preset,
        [
            f"rounds={arguments.rounds}",
            f"mobility.speed_mps={arguments.speed}",
            f"learning.evaluate_every_rounds={arguments.evaluate_every}",
        ],
    )
    execution = Execution(device=arguments.device, precision=arguments.precision, keep_model=False)
    shared = Shared(execution=execution)
    task = None if arguments.small else random_images()
    with tempfile.TemporaryDirectory() as name, sharing(), ExitStack() as stack:
        folder = Path(name)
        if task is not None:
            stack.enter_context(patch("wayfare.world.draw.load_task", lambda _: task))
        if arguments.only:
            jobs = [job for run, job in enumerate(jobs_of(scenario, folder)) if run in arguments.only]
            seconds_of(jobs, shared, arguments.at_once[0])
            return
        began = time.perf_counter()
        short = scenario.model_copy(update={"rounds": FIRST_ROUNDS})
        seconds_of(jobs_of(short, folder / "warm")[:2], shared)
        print(f"ready in {time.perf_counter() - began:.1f} s", flush=True)
        draw_world.cache_clear()
        figures = measured(scenario, shared, arguments.at_once, folder, lambda line: print(line, flush=True))
    write(figures, arguments.json)
    if not all(row["same_bits"] for row in figures["together"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
