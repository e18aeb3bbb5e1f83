"""The cost of large fleets: CPU time per device-step, and peak memory, for 20 to 100,000 devices.

    python benchmarks/fleet.py [--devices 20 1000 10000 100000] [--in-memory] [--folder FOLDER] [--json FILE]

Whole runs of the default preset with a perceptron of 98,918 parameters, each in its own process. Devices share samples,
500 each. Vectors of error feedback and local models are on disk, unless --in-memory; 100,000 devices need up to 80 GB
of disk. The cost of a device-step includes the whole run except drawing its world and evaluations, whose
number does not depend on the fleet: local steps, contacts, top-k, the server. The goals are a cost within 30 % of that
of 20 devices and under 8 GB up to 10,000 devices, within 50 % and under 24 GB for more. Small fleets run with several
seeds, to be long enough to measure.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

import wayfare
from wayfare.engine import Burst, InMemory, OnDisk
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.tasks import Evaluation
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import draw_world

# Up to this many devices, the cost relative to the smallest fleet, and the memory.
GOALS = {10_000: (1.3, 8.0), 100_000: (1.5, 24.0)}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    devices: int
    rounds: int
    folder: Path | None  # for vectors on disk; None: in memory
    # The minimum number of device-steps to measure.
    steps: int = 20_000


@dataclass(frozen=True, kw_only=True)
class Result:
    devices: int
    rounds: int
    runs: int
    parameters: int
    device_steps: int
    contacts: int
    world_s: float
    microseconds_per_step: float
    peak_memory_gb: float
    on_disk: bool


class Nobody:
    """Counts contacts."""

    contacts = 0

    def on_contact(self, event: ContactEvent) -> None:
        self.contacts += 1

    def on_relay(self, event: RelayEvent) -> None:
        pass

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        pass

    def on_round(self, round_: int) -> None:
        pass


def measure(fleet: Fleet) -> Result:
    torch.set_num_threads(1)
    scenario = wayfare.load(
        "fashion-small",
        [
            f"rounds={fleet.rounds}",
            f"fleet.devices={fleet.devices}",
            # Every device has the default budget, for any size of the fleet.
            f"fleet.energy_total_joules={25 * fleet.devices}",
            "learning.hidden=[300,128]",
            "learning.partition.kind=shared",
            f"learning.evaluate_every_rounds={fleet.rounds}",
        ],
    )
    run, taken, observer, cost_s, world_s, seed = StackedMlp.run, [0], Nobody(), 0.0, 0.0, 0
    evaluate, evaluating_s = Evaluator.__call__, [0.0]

    def counted(engine: StackedMlp, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        taken[0] += sum(burst.rounds for burst in bursts)
        run(engine, models, bursts)

    def timed(evaluator: Evaluator, model: Tensor) -> Evaluation:
        began = time.process_time()
        result = evaluate(evaluator, model)
        evaluating_s[0] += time.process_time() - began
        return result

    with (
        patch.object(StackedMlp, "run", counted),
        patch.object(Evaluator, "__call__", timed),
    ):
        while taken[0] < fleet.steps:
            began = time.process_time()
            world = draw_world(scenario, seed)
            world_s += time.process_time() - began
            entries = len(world.initial_model)
            with tempfile.TemporaryDirectory(dir=fleet.folder) as folder:
                shelf = InMemory() if fleet.folder is None else OnDisk(Path(folder) / "rows", fleet.devices, entries)
                simulation = Simulation(world, make_method("mads", scenario), observer, shelf=shelf)
                began, evaluating_s[0] = time.process_time(), 0.0
                simulation.run()
                cost_s += time.process_time() - began - evaluating_s[0]
            seed += 1
    return Result(
        devices=fleet.devices,
        rounds=fleet.rounds,
        runs=seed,
        parameters=entries,
        device_steps=taken[0],
        contacts=observer.contacts,
        world_s=round(world_s / seed, 2),
        microseconds_per_step=round(1e6 * cost_s / taken[0], 1),
        peak_memory_gb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        on_disk=fleet.folder is not None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", type=int, default=[20, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--in-memory", action="store_true", help="keep every vector in memory")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for vectors on disk")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread")
    columns = f"{'devices':>8} {'runs':>5} {'device-steps':>13} {'contacts':>9} {'world s':>8} {'us a step':>10}"
    print(f"{columns} {'ratio':>6} {'peak GB':>8}")
    folder = None if arguments.in_memory else arguments.folder
    fleets = [Fleet(devices=n, rounds=arguments.rounds, folder=folder) for n in arguments.devices]
    results = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for result in pool.imap(measure, fleets):
            results.append(result)
            ratio = result.microseconds_per_step / results[0].microseconds_per_step
            print(
                f"{result.devices:8,} {result.runs:5} {result.device_steps:13,} {result.contacts:9,}"
                f" {result.world_s:8.2f} {result.microseconds_per_step:10.1f}"
                f" {ratio:6.2f} {result.peak_memory_gb:8.2f}",
                flush=True,
            )
    for most, (ratio, limit_gb) in GOALS.items():
        sized = [result for result in results if result.devices <= most]
        flat = all(result.microseconds_per_step <= ratio * results[0].microseconds_per_step for result in sized)
        small = all(result.peak_memory_gb < limit_gb for result in sized)
        print(
            f"up to {most:,} devices: at most {ratio} times the cost: {'yes' if flat else 'NO'};"
            f" memory under {limit_gb:g} GB: {'yes' if small else 'NO'}"
        )
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
