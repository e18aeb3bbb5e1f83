"""Runs of the paper's size on one GPU: 20 devices, ResNet-9, 4,000 rounds, 41 evaluations of 10,000 images.

    python benchmarks/full_run.py [--engine auto] [--precision tf32] [--rounds 4000] [--scheme mads mads-rd]
                                  [--speed 20 40] [--trained adapters] [--json FILE]

Every scheme runs at every speed, one run after another in one process. A short run of every scheme before them compiles
and loads its kernels, which takes up to half a minute once per machine and about a second in every later process. The
world is that of the paper's waypoint scenario. The images are random bytes of the size of CIFAR-10, because speed does
not depend on their content. With `--trained`, devices train this part of an EfficientNet-Lite0 with random weights
instead of ResNet-9, on random activations of 160 pixels. The goals: 1.15 times (MADS) or 1.3 times (MADS-RD) the rounds
times a round of the engine alone. The shares are times of the host, with its waits for the GPU; local steps run on the
GPU during all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import wayfare
from rounds import tuned_cases, tuned_task
from wayfare.engine import Burst, Compute, Trainer
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.models.tuned import Tuned
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.images import ImageClassification
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import draw_world

# Rounds of the run that makes everything ready.
FIRST_ROUNDS = 60
# Rounds in which the engine is timed alone.
ALONE_ROUNDS = 24
# What the host does, as methods whose time is counted, without the methods inside them.
PARTS: tuple[tuple[type, str, str], ...] = (
    (Trainer, "_run", "launch local steps"),
    (Simulation, "_contacts", "contacts"),
    (Simulation, "_evaluation", "evaluation"),
)


class Counter:
    """Counts what happens."""

    def __init__(self) -> None:
        self.contacts = self.evaluations = 0

    def on_contact(self, event: ContactEvent) -> None:
        self.contacts += 1

    def on_relay(self, event: RelayEvent) -> None:
        pass

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        self.evaluations += 1

    def on_round(self, round_: int) -> None:
        pass


def random_images() -> ImageClassification:
    rng = np.random.default_rng(0)
    train, test = (
        torch.from_numpy(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)) for count in (50_000, 10_000)
    )
    return ImageClassification(
        name="cifar10",
        model=Resnet9(),
        classes=10,
        class_names=tuple("0123456789"),
        train_images=train,
        train_labels=torch.arange(50_000) % 10,
        test_images=test,
        test_labels=torch.arange(10_000) % 10,
        mean=torch.full((3, 1, 1), 127.5),
        deviation=torch.full((3, 1, 1), 73.9),
    )


def random_activations(trained: str) -> TunedClassification:
    """A trained part of EfficientNet-Lite0: the last 4 blocks, or something in the last 7."""
    blocks = 4 if trained == "last-block" else 7
    case = next(each for each in tuned_cases() if each.name.endswith(f" {trained} {blocks}"))
    assert isinstance(case.model, Tuned)
    task = tuned_task(case.model, case.shape, 20_000)
    return replace(task, test_stored=task.train_stored[:10_000], test_labels=task.train_labels[:10_000])


@contextmanager
def timed_parts(seconds: dict[str, float]) -> Iterator[None]:
    """Count the seconds of every part."""
    inside: list[float] = []

    def timed(work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def work_timed(*arguments: Any, **settings: Any) -> Any:
            began = time.perf_counter()
            inside.append(0.0)
            try:
                return work(*arguments, **settings)
            finally:
                took_s = time.perf_counter() - began
                seconds[part] += took_s - inside.pop()
                if inside:
                    inside[-1] += took_s

        return work_timed

    with ExitStack() as stack:
        for kind, name, part in PARTS:
            stack.enter_context(patch.object(kind, name, timed(getattr(kind, name), part)))
        yield


def engine_ms(simulation: Simulation, devices: int) -> float:
    """Milliseconds of a round of all devices, without contacts."""
    engine, model = simulation.choice.engine, simulation.local_model(0)
    vectors = [model.clone() for _ in range(devices)]
    bursts = [Burst(device, 1, ALONE_ROUNDS) for device in range(devices)]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        engine.run(vectors, bursts)
        float(vectors[0][0])
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds) / ALONE_ROUNDS


def evaluation_ms(simulation: Simulation, task: Task, compute: Compute, model: torch.Tensor) -> float:
    """Milliseconds of an evaluation, with nothing else on the GPU."""
    evaluate, seconds = Evaluator(task.to(compute.device), module=simulation.choice.engine.evaluated()), []
    for _ in range(4):
        began = time.perf_counter()
        evaluate(model)
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds)


def measured(arguments: argparse.Namespace, task: Task, scheme: str, speed_mps: float, rounds: int) -> dict[str, Any]:
    """The figures of one run."""
    scenario = wayfare.load(
        "paper-cifar10-waypoint",
        [
            f"rounds={rounds}",
            f"learning.evaluate_every_rounds={max(rounds // 40, 1)}",
            f"mobility.speed_mps={speed_mps}",
        ],
    )
    began = time.perf_counter()
    with patch("wayfare.world.draw.load_task", lambda _: task):
        world = draw_world(scenario, 0)
    drawn = time.perf_counter()
    counter = Counter()
    compute = Compute.named(arguments.device, arguments.precision, fast=arguments.fast)
    parts: dict[str, float] = defaultdict(float)
    with compute.own_stream():
        method = make_method(scheme, scenario)
        simulation = Simulation(world, method, counter, engine=arguments.engine, compute=compute)
        ready = time.perf_counter()
        with timed_parts(parts):
            outcome = simulation.run()
        assert bool(outcome.model.isfinite().all())
        done = time.perf_counter()
        with compute.numerics():
            alone_ms = engine_ms(simulation, scenario.fleet.devices)
            judged_ms = evaluation_ms(simulation, world.task, compute, outcome.model)
    run_s = done - ready
    parts["other"] = run_s - sum(parts.values())
    figures = {
        "engine": simulation.choice.name,
        "scheme": scheme,
        "trained": arguments.trained or "ResNet-9",
        "speed_mps": speed_mps,
        "precision": arguments.precision,
        "rounds": rounds,
        "contacts": counter.contacts,
        "evaluations": counter.evaluations,
        "draw_s": round(drawn - began, 2),
        "ready_s": round(ready - drawn, 2),
        "run_s": round(run_s, 2),
        "round_ms": round(1e3 * run_s / rounds, 2),
        "engine_round_ms": round(alone_ms, 2),
        "evaluation_ms": round(judged_ms, 1),
        "times_the_engine": round(1e3 * run_s / (rounds * alone_ms), 3),
    }
    return figures | {f"share, {part}": round(part_s / run_s, 3) for part, part_s in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--scheme", nargs="+", default=["mads"])
    parser.add_argument("--speed", type=float, nargs="+", default=[20.0], help="metres per second")
    parser.add_argument("--trained", choices=["norms", "adapters", "last-block"], help="of EfficientNet-Lite0")
    parser.add_argument("--fast", action="store_true", help="without deterministic algorithms")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = random_activations(arguments.trained) if arguments.trained else random_images()
    for scheme in arguments.scheme:
        first = measured(arguments, task, scheme, arguments.speed[0], FIRST_ROUNDS)
        print(f"{scheme} made ready in {first['ready_s'] + first['run_s']:.1f} s", flush=True)
    found = []
    for scheme, speed_mps in product(arguments.scheme, arguments.speed):
        found.append(measured(arguments, task, scheme, speed_mps, arguments.rounds))
        print(", ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
