"""Device-steps per second: engines against a plain loop over modules, in one run.

    python benchmarks/engine.py [--device cuda] [--only OWN] [--json FILE]
    python benchmarks/engine.py --only OWN --profile     # the CPU time of every operation in a step of the engine

Both train 20 devices on minibatches of 32 with one thread. The plain loop is the obvious code: for every device a
module, an optimiser, a minibatch, `backward` and `step`. The two alternate, and the median ratio counts, so that other
load on the machine affects both. On a CPU the unit is CPU seconds, on a GPU wall time.

The perceptrons named by their sizes are Wayfare's own model. The others are ordinary PyTorch modules, which `own_task`
takes from a user, with the engine that `auto` chooses for them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from wayfare.engine import Burst, Compute, Engine, LocalTraining, make_engine
from wayfare.learning.batches import Batches
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Classification, Task, own_task

DEVICES, BATCH, ROUNDS, SAMPLES, CLASSES = 20, 32, 100, 2_000, 10
GPU_GOAL = 4.0


def own_perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def own_cnn(side: int = 14) -> nn.Module:
    """For images of the embedded default's size, unless ``side`` says otherwise."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    )


def own_dropout_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 3, CLASSES)),
    )


def own_depthwise_cnn() -> nn.Module:
    def block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        depthwise = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False)
        between = nn.BatchNorm2d(inputs), nn.ReLU6(), nn.Conv2d(inputs, outputs, 1, bias=False)
        return depthwise, *between, nn.BatchNorm2d(outputs), nn.ReLU6()

    first = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    return nn.Sequential(*first, *block(16, 32), *block(32, 64), *last)


class OwnGru(nn.Module):
    """Reads the rows of an image one after another."""

    def __init__(self, features: int = 32, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.GRU(28, features, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(features, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.layer(rows)[0][:, -1])  # type: ignore[no-any-return]


class OwnGruCell(nn.Module):
    """The same in a loop of Python."""

    def __init__(self, features: int = 32) -> None:
        super().__init__()
        self.features, self.cell, self.head = features, nn.GRUCell(28, features), nn.Linear(features, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        state = rows.new_zeros(rows.size(0), self.features)
        for row in rows.unbind(1):
            state = self.cell(row, state)
        return self.head(state)  # type: ignore[no-any-return]


class OwnTransformer(nn.Module):
    """Two layers of attention with four heads."""

    def __init__(self, words: int = 16, features: int = 32) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(64, features), nn.Parameter(0.02 * torch.randn(words, features))
        layer = nn.TransformerEncoderLayer(features, 4, 2 * features, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(features, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words) + self.positions).mean(dim=1))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its inputs, and the goal for the ratio of the engine to the plain loop on a CPU, if there is one."""

    name: str
    network: Mlp | Callable[[], nn.Module]
    shape: tuple[int, ...]
    goal: float | None
    words: bool = False
    steps: int = 96
    plain_steps: int = 20
    repeats: int = 7


CASES = (
    *(
        Case(name="-".join(map(str, sizes)), network=Mlp(sizes), shape=sizes[:1], goal=goal)
        for sizes, goal in [((196, 256, 128, 10), 3.0), ((784, 64, 10), 4.0), ((64, 64, 10), 10.0), ((1280, 10), 3.0)]
    ),
    Case(name="own perceptron", network=own_perceptron, shape=(1, 28, 28), goal=3.0),
    Case(name="own CNN", network=own_cnn, shape=(1, 14, 14), goal=1.8, steps=24, plain_steps=8),
    Case(name="own CNN 28 x 28", network=partial(own_cnn, 28), shape=(1, 28, 28), goal=1.8, steps=24, plain_steps=8),
    Case(name="own GRU", network=OwnGru, shape=(28, 28), goal=2.0, steps=24, plain_steps=8),
    Case(name="own transformer", network=OwnTransformer, shape=(16,), goal=2.0, words=True, steps=24, plain_steps=8),
    Case(name="own GRUCell", network=OwnGruCell, shape=(28, 28), goal=None, steps=24, plain_steps=8),
    Case(
        name="own GRU, dropout", network=partial(OwnGru, 32, 2, 0.2), shape=(28, 28), goal=None, steps=24, plain_steps=8
    ),
    Case(name="own CNN, dropout", network=own_dropout_cnn, shape=(1, 14, 14), goal=None, steps=24, plain_steps=8),
    Case(name="own CNN, depthwise", network=own_depthwise_cnn, shape=(1, 14, 14), goal=None, steps=24, plain_steps=8),
    # Larger networks gain less: a plain loop uses a core well for them too.
    Case(name="own GRU of 64", network=partial(OwnGru, 64), shape=(28, 28), goal=None, steps=24, plain_steps=8),
    Case(
        name="own transformer 32 x 64",
        network=partial(OwnTransformer, 32, 64),
        shape=(32,),
        goal=None,
        words=True,
        steps=12,
        plain_steps=4,
    ),
)


def training(case: Case, compute: Compute) -> LocalTraining:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 64, (SAMPLES, *case.shape)) if case.words else rng.standard_normal((SAMPLES, *case.shape))
    inputs = torch.from_numpy(numbers if case.words else numbers.astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, CLASSES, SAMPLES))
    held = [rng.integers(0, SAMPLES, 500) for _ in range(DEVICES)]
    task = task_of(case, inputs, labels).to(compute.device)
    return LocalTraining(task=task, batches=Batches(held, BATCH, ROUNDS, seed=0), learning_rate=0.05, compute=compute)


def task_of(case: Case, inputs: Tensor, labels: Tensor) -> Task:
    if not isinstance(case.network, Mlp):
        return own_task("random", train=(inputs, labels), test=(inputs[:9], labels[:9]), network=case.network)
    return Classification(
        name="random",
        model=case.network,
        classes=CLASSES,
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:1],
        test_labels=labels[:1],
    )


def now(where: torch.device) -> float:
    """CPU seconds, or seconds of wall time after all work of a GPU."""
    if where.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def plain_loop(local: LocalTraining, steps: int) -> float:
    where, task = local.compute.device, local.task
    modules = [task.model.module().to(where) for _ in range(DEVICES)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=local.learning_rate) for module in modules]
    batches = [torch.from_numpy(local.batches.of(device, 1, steps)).to(where) for device in range(DEVICES)]
    with local.compute.numerics():
        started = now(where)
        for step in range(steps):
            for device in range(DEVICES):
                optimisers[device].zero_grad()
                task.loss(modules[device], batches[device][step]).backward()
                optimisers[device].step()
        return DEVICES * steps / (now(where) - started)


def engine(runner: Engine, local: LocalTraining, steps: int) -> float:
    initial = local.task.model.initial(np.random.default_rng(0)).to(local.compute.device)
    models = [initial.clone() for _ in range(DEVICES)]
    started = now(local.compute.device)
    # Twelve steps at a time, as the simulator asks for them.
    for first in range(1, steps + 1, 12):
        count = min(12, steps + 1 - first)
        runner.run(models, [Burst(device, first, count) for device in range(DEVICES)])
    return DEVICES * steps / (now(local.compute.device) - started)


def measure(case: Case, compute: Compute) -> dict[str, object]:
    local = training(case, compute)
    runner = make_engine("auto", local)
    plain_loop(local, 3)
    engine(runner, local, 12)
    pairs = [(plain_loop(local, case.plain_steps), engine(runner, local, case.steps)) for _ in range(case.repeats)]
    return {
        "model": case.name,
        "engine": type(runner).__name__,
        "plain_steps_per_s": round(statistics.median(plain for plain, _ in pairs)),
        "engine_steps_per_s": round(statistics.median(stacked for _, stacked in pairs)),
        "ratio": round(statistics.median(stacked / plain for plain, stacked in pairs), 2),
        "goal": GPU_GOAL if case.goal is not None and compute.device.type != "cpu" else case.goal,
    }


class Timed(TorchDispatchMode):
    """Adds up the CPU seconds of operations by name and shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        started = time.thread_time()
        result = func(*args, **(kwargs or {}))
        took = time.thread_time() - started
        shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
        self.seconds[f"{func} {shapes}"] += took
        return result


def profile(case: Case, compute: Compute, rows: int = 30) -> None:
    """Print the operations that take most time: for each its smallest time in five repeats of a dozen steps."""
    local, steps = training(case, compute), 12
    runner = make_engine("auto", local)
    engine(runner, local, steps)
    rates, repeats = [], []
    for _ in range(5):
        rates.append(engine(runner, local, steps))
        with Timed() as timed:
            engine(runner, local, steps)
        repeats.append(timed.seconds)
    print(f"{case.name}: {DEVICES / max(rates) * 1e3:.1f} ms per step of {DEVICES} devices, of which")
    smallest = {name: min(repeat[name] for repeat in repeats) for name in repeats[0]}
    for name, seconds in sorted(smallest.items(), key=lambda item: -item[1])[:rows]:
        print(f"{seconds / steps * 1e3:7.2f} ms  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", default="", help="only models whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--profile", action="store_true", help="show where the engine's time goes, on a CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compute = Compute.named(arguments.device)
    chosen = [case for case in CASES if arguments.only.lower() in case.name.lower()]
    if arguments.profile:
        for case in chosen:
            profile(case, compute)
        return
    machine = platform.processor() or platform.machine() if compute.device.type == "cpu" else compute.hardware
    print(f"{machine}, torch {torch.__version__}, {DEVICES} devices, batch {BATCH}, device-steps per second")
    print(f"{'model':>23} {'plain loop':>11} {'engine':>9} {'ratio':>6} {'goal':>5}")
    rows = []
    for case in chosen:
        row = measure(case, compute)
        rows.append(row)
        numbers = f"{row['plain_steps_per_s']:>11,} {row['engine_steps_per_s']:>9,} {row['ratio']:>6}"
        print(f"{row['model']:>23} {numbers} {row['goal'] or 'none':>5}  {row['engine']}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
