"""A run of the paper's size on one GPU: 20 devices, ResNet-9, 2,000 rounds, 40 evaluations of 10,000 images.

    python benchmarks/full_run.py [--precision tf32] [--rounds 2000] [--json FILE]

The world is that of the paper's waypoint scenario. The images are random bytes of the size of CIFAR-10, because speed
does not depend on their content. The goal is 45 s in TF32, without the preparation of the engine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import wayfare
from wayfare.engine import Compute
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.images import ImageClassification
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import draw_world

GOAL_S = 45.0


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--scheme", default="mads")
    parser.add_argument("--fast", action="store_true", help="without deterministic algorithms")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scenario = wayfare.load(
        "paper-cifar10-waypoint",
        [f"rounds={arguments.rounds}", f"learning.evaluate_every_rounds={max(arguments.rounds // 40, 1)}"],
    )
    began = time.perf_counter()
    with patch("wayfare.world.draw.load_task", lambda _: random_images()):
        world = draw_world(scenario, 0)
    drawn = time.perf_counter()
    counter = Counter()
    compute = Compute.named(arguments.device, arguments.precision, fast=arguments.fast)
    simulation = Simulation(world, make_method(arguments.scheme, scenario), counter, compute=compute)
    ready = time.perf_counter()
    outcome = simulation.run()
    assert bool(outcome.model.isfinite().all())
    done = time.perf_counter()
    figures = {
        "precision": arguments.precision,
        "rounds": arguments.rounds,
        "contacts": counter.contacts,
        "evaluations": counter.evaluations,
        "draw_s": round(drawn - began, 2),
        "ready_s": round(ready - drawn, 2),
        "run_s": round(done - ready, 2),
        "goal_s": GOAL_S,
    }
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
