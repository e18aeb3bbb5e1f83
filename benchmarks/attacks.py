"""Poisoned updates in the simulator: what one hostile device of ten costs, with and without the guard.

python benchmarks/attacks.py --first-seed 100     # all attacks, seeds 100 to 104
python benchmarks/attacks.py --attacks sign-flipped --seeds 2 --scheme "afl + geometric-median"
python benchmarks/attacks.py --attacks none --seeds 3 --set fleet.devices=4 --set learning.partition.concentration=0.1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
import torch

from wayfare.errors import DivergenceError
from wayfare.learning.batches import Batches
from wayfare.learning.tasks import Classification
from wayfare.methods import Arrival, make_method
from wayfare.scenario import load
from wayfare.simulator import EvaluationEvent, Observer, Simulation
from wayfare.sparsify import Sparse
from wayfare.world import World, draw_world

HOSTILE, SETTINGS = 3, ("fleet.devices=10", "fleet.energy_total_joules=250")
# The score of a model that guesses among ten classes; a run that diverges ends there.
GUESSING = 0.1
Forgery = Callable[[Arrival, list[Arrival]], Sequence[Arrival]]


def _times(factor: float) -> Forgery:
    return lambda arrival, _: [_with(arrival, arrival.sent.values * factor)]


def _with(arrival: Arrival, values: torch.Tensor) -> Arrival:
    return replace(arrival, sent=Sparse(arrival.sent.indices, values))


# What the hostile device sends instead of its update, given its earlier updates too.
ATTACKS: dict[str, Forgery] = {
    "none": lambda arrival, _: [arrival],
    "absent": lambda arrival, _: [],
    "constant 9,999": lambda arrival, _: [_with(arrival, torch.full_like(arrival.sent.values, 9_999.0))],
    "scaled by 100": _times(100.0),
    "sign-flipped": _times(-1.0),
    "sign-flipped and scaled by 10": _times(-10.0),
    "label-flipped": lambda arrival, _: [arrival],
    "replayed": lambda arrival, earlier: [replace(earlier[0], round=arrival.round)],
    "Sybil: ten times each": lambda arrival, _: [arrival] * 10,
    "Sybil: ten times sign-flipped": lambda arrival, _: [_with(arrival, -arrival.sent.values)] * 10,
}


class _Scores(Observer):
    def __init__(self) -> None:
        self.scores: list[float] = []

    def on_evaluation(self, event: EvaluationEvent, metrics: object) -> None:
        self.scores.append(event.score)


def score(attack: str, scheme: str, seed: int, settings: Sequence[str] = ()) -> float:
    """The mean of the last five evaluations; ``settings`` change the scenario."""
    scenario = load("fashion-small", [*SETTINGS, *settings])
    world, seen = draw_world(scenario, seed), _Scores()
    if attack == "label-flipped":
        world = _mislabelled(world)
    simulation = Simulation(world, make_method(scheme, scenario), seen)
    server, earlier = simulation._server, list[Arrival]()
    arrive = server.arrive

    def forged(arrival: Arrival) -> None:
        if arrival.device != HOSTILE:
            arrive(arrival)
            return
        earlier.append(arrival)
        for forgery in ATTACKS[attack](arrival, earlier):
            arrive(forgery)

    server.arrive = forged  # type: ignore[method-assign]
    try:
        simulation.run()
    except DivergenceError:
        return GUESSING
    return mean(seen.scores[-5:])


def _mislabelled(world: World) -> World:
    """The hostile device's labels y become 9 - y. It gets copies of its samples, because devices share some."""
    task, held = world.task, list(world.held)
    assert isinstance(task, Classification)
    own, count = torch.from_numpy(held[HOSTILE]), len(task.train_labels)
    held[HOSTILE] = np.arange(count, count + len(own))
    inputs = torch.cat([task.train_inputs, task.train_inputs[own]])
    labels = torch.cat([task.train_labels, task.classes - 1 - task.train_labels[own]])
    batches = Batches(held, world.scenario.learning.batch_size, world.scenario.rounds, world.seed)
    return replace(world, held=held, batches=batches, task=replace(task, train_inputs=inputs, train_labels=labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheme", default="mads")
    parser.add_argument("--guard", default="guard", help="how the guard is composed; default: with its default values")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="a setting of the scenario, such as fleet.devices=4")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    clean: dict[str, float] = {}
    print("| attack | without | with | cost without | cost with |")
    print("| --- | --- | --- | --- | --- |")
    for attack in arguments.attacks:
        row = []
        for scheme in (arguments.scheme, f"{arguments.scheme} + {arguments.guard}"):
            found = 100 * mean(score(attack, scheme, seed, arguments.set) for seed in seeds)
            clean.setdefault(scheme, found)
            row.append((found, clean[arguments.scheme] - found))
        print(f"| {attack} | " + " | ".join(f"{value:.1f}" for value, _ in row), end=" | ")
        print(" | ".join(f"{cost:.1f}" for _, cost in row) + " |", flush=True)


if __name__ == "__main__":
    main()
