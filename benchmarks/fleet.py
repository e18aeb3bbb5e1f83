"""The cost of large fleets: CPU time per device-step, and peak memory, for 20 to 10,000 devices.

    python benchmarks/fleet.py [--devices 20 200 2000 10000] [--in-memory] [--json FILE]

Whole runs of the default preset with a perceptron of 98,918 parameters, each in its own process. Vectors of
error feedback are memory-mapped on disk, unless --in-memory. The cost of a device-step includes the whole run except
drawing its world: local steps, contacts, top-k, the server. The goals are a cost within 30 % of that of 20 devices,
and under 8 GB for 10,000 devices. Small fleets run with several seeds, to be long enough to measure.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
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
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import draw_world

LIMIT_GB, SPREAD = 8.0, 0.3


@dataclass(frozen=True, kw_only=True)
class Fleet:
    devices: int
    rounds: int
    on_disk: bool
    # Number of seeds, and the minimum number of device-steps to measure.
    steps: int = 20_000


@dataclass(frozen=True, kw_only=True)
class Result:
    devices: int
    rounds: int
    runs: int
    parameters: int
    device_steps: int
    contacts: int
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
            f"learning.evaluate_every_rounds={fleet.rounds}",
        ],
    )
    run, taken, observer, costs, seed = StackedMlp.run, [0], Nobody(), [], 0

    def counted(engine: StackedMlp, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        taken[0] += sum(burst.rounds for burst in bursts)
        run(engine, models, bursts)

    with tempfile.TemporaryDirectory() as folder, patch.object(StackedMlp, "run", counted):
        while seed < 3 or taken[0] < fleet.steps:
            world = draw_world(scenario, seed)
            entries = len(world.initial_model)
            shelf = OnDisk(Path(folder) / f"{seed}", fleet.devices, entries) if fleet.on_disk else InMemory()
            simulation = Simulation(world, make_method("mads", scenario), observer, shelf=shelf)
            before, began = taken[0], time.process_time()
            simulation.run()
            costs.append((time.process_time() - began) / (taken[0] - before))
            seed += 1
            if taken[0] >= 10 * fleet.steps:
                break
    return Result(
        devices=fleet.devices,
        rounds=fleet.rounds,
        runs=seed,
        parameters=entries,
        device_steps=taken[0],
        contacts=observer.contacts,
        microseconds_per_step=round(1e6 * statistics.median(costs), 1),
        peak_memory_gb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        on_disk=fleet.on_disk,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", type=int, default=[20, 200, 2_000, 10_000])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--in-memory", action="store_true", help="keep every vector in memory")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread")
    print(
        f"{'devices':>8} {'runs':>5} {'device-steps':>13} {'contacts':>9} {'us a step':>10} {'ratio':>6} {'peak GB':>8}"
    )
    fleets = [Fleet(devices=n, rounds=arguments.rounds, on_disk=not arguments.in_memory) for n in arguments.devices]
    results = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for result in pool.imap(measure, fleets):
            results.append(result)
            ratio = result.microseconds_per_step / results[0].microseconds_per_step
            print(
                f"{result.devices:8,} {result.runs:5} {result.device_steps:13,} {result.contacts:9,}"
                f" {result.microseconds_per_step:10.1f} {ratio:6.2f} {result.peak_memory_gb:8.2f}",
                flush=True,
            )
    costs = [result.microseconds_per_step for result in results]
    flat = max(costs) <= (1 + SPREAD) * costs[0]
    small = all(result.peak_memory_gb < LIMIT_GB for result in results)
    print(
        f"cost within {SPREAD:.0%}: {'yes' if flat else 'NO'}; memory under {LIMIT_GB:g} GB: {'yes' if small else 'NO'}"
    )
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
