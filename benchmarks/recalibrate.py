"""The gain of recalibrated statistics: a narrow ResNet-9 on CIFAR-10, small enough for a CPU.

    python benchmarks/recalibrate.py [--seeds 0 1 2] [--rho 0.1 1.0] [--samples 100 500 1000] [--set a.b=c ...]

Training is the same with and without, so one run evaluates every model both ways. The table has the accuracy in per
cent on 2,000 test images, averaged over the last five evaluations and seeds, and the paired gain with standard error.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

import wayfare
from wayfare.learning.data import CIFAR10, load_images
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.recalibrate import Recalibration, draw_samples
from wayfare.learning.tasks.images import ImageClassification, image_task
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.world import World, draw_world

SMALL = (
    "rounds=300",
    "fleet.devices=10",
    "mobility.width_m=300",
    "mobility.height_m=300",
    "control.weight=auto",
    "server.average_rounds=50",
    "learning.learning_rate=0.05",
    "learning.evaluate_every_rounds=30",
)


class Judge:
    """Evaluates the newest model and the mean of models after the last rounds, with each number of samples."""

    simulation: Simulation

    def __init__(self, world: World, samples: Sequence[int]) -> None:
        learning = world.scenario.learning
        self._after_round = world.scenario.rounds - learning.final_evaluations * learning.evaluate_every_rounds
        self._evaluate = Evaluator(world.task)
        self._recalibrations = {
            count: Recalibration(world.task, torch.from_numpy(draw_samples(count, world.held, world.seed)))
            for count in samples
        }
        self.scores: dict[tuple[str, int], list[float]] = defaultdict(list)

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        """Evaluate the models after this round."""
        if event.round <= self._after_round:
            return
        server = self.simulation.state().server
        for name, model in (("newest", server.model), ("mean", server.averaged)):
            assert model is not None
            self.scores[name, 0].append(self._evaluate(model).score)
            for count, recalibrate in self._recalibrations.items():
                self.scores[name, count].append(self._evaluate(recalibrate(model)).score)

    def on_contact(self, event: ContactEvent) -> None:
        """Nothing."""

    def on_relay(self, event: RelayEvent) -> None:
        """Nothing."""

    def on_round(self, round_: int) -> None:
        """Nothing."""


def measure(
    task: ImageClassification, overrides: Sequence[str], samples: Sequence[int], seed: int
) -> dict[tuple[str, int], float]:
    """The scores of one run, by model and number of samples."""
    scenario = wayfare.load("paper-cifar10-waypoint", overrides)
    world = draw_world(scenario, seed, task)
    judge = Judge(world, samples)
    judge.simulation = Simulation(world, make_method("mads", scenario), judge)
    judge.simulation.run()
    return {which: float(np.mean(scores)) for which, scores in judge.scores.items()}


def main() -> None:
    """Print one row for each rho, model and number of samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rho", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = image_task("cifar10", load_images(CIFAR10), Resnet9(width=options.width), CIFAR10.classes)
    task = replace(task, test_images=task.test_images[:2000], test_labels=task.test_labels[:2000])
    print("| rho | model | samples | accuracy | gain |\n| --- | --- | --- | --- | --- |", flush=True)
    for rho in options.rho:
        settings = [*SMALL, f"learning.partition.concentration={rho}", *options.overrides]
        runs = [measure(task, settings, options.samples, seed) for seed in options.seeds]
        for model, count in runs[0]:
            found = 100 * np.array([run[model, count] for run in runs])
            gains = found - 100 * np.array([run[model, 0] for run in runs])
            error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
            gain = f"{gains.mean():+.1f} ± {error:.1f}" if count else ""
            print(f"| {rho:g} | {model} | {count or 'off'} | {found.mean():.1f} | {gain} |", flush=True)


if __name__ == "__main__":
    main()
