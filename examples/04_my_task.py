"""Define your own task: data, a network and a loss. The network learns on which of two spirals a point lies."""

import numpy as np
from torch import nn

import wayfare


def spirals(points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    arm, turn = rng.integers(0, 2, points), rng.random(points)
    angle = 4 * turn + np.pi * arm
    places = (0.2 + turn + 0.02 * rng.standard_normal(points)) * [np.cos(angle), np.sin(angle)]
    return places.T.astype(np.float32), arm


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


if __name__ == "__main__":
    task = wayfare.own_task("spirals", train=spirals(4000, 0), test=spirals(1000, 1), network=network)
    scenario = wayfare.load("fashion-small", ["rounds=100", "learning.learning_rate=1.0", "radio.bandwidth_hz=1e3"])
    for scheme in wayfare.compare(scenario, ["mads", "afl"], seeds=2, task=task).schemes:
        print(f"{scheme.name:5} {100 * scheme.score_mean:5.1f} %  {scheme.energy_joules_mean:6.1f} J")
