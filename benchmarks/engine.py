"""Device-steps per CPU second: `stacked` against a plain loop over modules, in one run.

    python benchmarks/engine.py [--json FILE]

Both train 20 devices on minibatches of 32 with one thread. The plain loop is the obvious code: for every device a
module, an optimiser, a minibatch, `backward` and `step`. The two alternate, and the median ratio counts, so that other
load on the machine affects both.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from wayfare.engine import Burst, LocalTraining, make_engine
from wayfare.learning.batches import Batches
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Classification

DEVICES, BATCH, ROUNDS, REPEATS = 20, 32, 100, 7
# (sizes, the goal for the ratio of `stacked` to the plain loop)
GOALS = [((196, 256, 128, 10), 3.0), ((784, 64, 10), 4.0), ((64, 64, 10), 10.0), ((1280, 10), 3.0)]


def training(sizes: tuple[int, ...]) -> LocalTraining:
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((10_000, sizes[0])).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, sizes[-1], 10_000))
    task = Classification(
        name="random",
        model=Mlp(sizes),
        classes=sizes[-1],
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:1],
        test_labels=labels[:1],
    )
    held = [rng.integers(0, 10_000, 500) for _ in range(DEVICES)]
    return LocalTraining(task=task, batches=Batches(held, BATCH, ROUNDS, seed=0), learning_rate=0.1)


def plain_loop(local: LocalTraining, steps: int) -> float:
    task = local.task
    assert isinstance(task, Classification)
    modules = [task.model.module() for _ in range(DEVICES)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=local.learning_rate) for module in modules]
    batches = [torch.from_numpy(local.batches.of(device, 1, steps)) for device in range(DEVICES)]
    started = time.process_time()
    for step in range(steps):
        for device in range(DEVICES):
            batch = batches[device][step]
            optimisers[device].zero_grad()
            loss = nn.functional.cross_entropy(modules[device](task.train_inputs[batch]), task.train_labels[batch])
            loss.backward()
            optimisers[device].step()
    return DEVICES * steps / (time.process_time() - started)


def engine(name: str, local: LocalTraining, steps: int) -> float:
    models = torch.randn(DEVICES, local.task.model.parameters, generator=torch.Generator().manual_seed(0)) * 0.05
    runner = make_engine(name, local)
    started = time.process_time()
    # Twelve steps at a time, as the simulator asks for them.
    for first in range(1, steps + 1, 12):
        count = min(12, steps + 1 - first)
        runner.run(list(models.unbind()), [Burst(device, first, count) for device in range(DEVICES)])
    return DEVICES * steps / (time.process_time() - started)


def measure(sizes: tuple[int, ...], goal: float) -> dict[str, object]:
    local = training(sizes)
    plain_loop(local, 5)
    engine("stacked", local, 16)
    pairs = [(plain_loop(local, 20), engine("stacked", local, 96)) for _ in range(REPEATS)]
    return {
        "model": "-".join(map(str, sizes)),
        "plain_steps_per_cpu_s": round(statistics.median(plain for plain, _ in pairs)),
        "stacked_steps_per_cpu_s": round(statistics.median(stacked for _, stacked in pairs)),
        "ratio": round(statistics.median(stacked / plain for plain, stacked in pairs), 2),
        "goal": goal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(sizes, goal) for sizes, goal in GOALS]
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {DEVICES} devices, batch {BATCH}")
    print(f"{'model':>16} {'plain loop/s':>13} {'stacked/s':>10} {'ratio':>6} {'goal':>5}")
    for row in rows:
        print(
            f"{row['model']:>16} {row['plain_steps_per_cpu_s']:>13,} {row['stacked_steps_per_cpu_s']:>10,} "
            f"{row['ratio']:>6} {row['goal']:>5}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
