"""The common job of all frameworks and its timing. It needs only NumPy and PyTorch.

20 devices, 10 local SGD steps per round on minibatches of 32, a perceptron 784-64-10, federated averaging with
all devices in every round, evaluation only at the end. The images are those of fashion-small, each pixel four times.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

DEVICES, STEPS, BATCH, LEARNING_RATE = 20, 10, 32, 0.1
# Rounds before the clock starts: processes come up, allocators fill, kernels are chosen.
WARM_ROUNDS = 3

DATA, ROUNDS, RESULT = "PEERS_DATA", "PEERS_ROUNDS", "PEERS_RESULT"


def rounds() -> int:
    """The number of timed rounds."""
    return int(os.environ[ROUNDS])


@cache
def data() -> dict[str, Tensor]:
    """train_inputs, train_labels, test_inputs, test_labels, and held: the samples of every device.

    Read once in every process.
    """
    with np.load(os.environ[DATA]) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(module: nn.Module) -> float:
    """Accuracy on the test images."""
    arrays = data()
    with torch.no_grad():
        right = module(arrays["test_inputs"]).argmax(dim=1) == arrays["test_labels"]
    return float(right.double().mean())


class Clock:
    """CPU time and wall time between the end of the warm rounds and the end of the last one."""

    def __init__(self) -> None:
        self._began = self._ended = (0.0, 0.0)

    def after_round(self, round_: int) -> None:
        """Call at the end of each round, counted from 1."""
        if round_ == WARM_ROUNDS:
            self._began = _now()
        if round_ == WARM_ROUNDS + rounds():
            self._ended = _now()

    def write(self, score: float) -> None:
        """Write the result for the parent process."""
        cpu_s, wall_s = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        result = {"cpu_s": cpu_s, "wall_s": wall_s, "accuracy": score, "torch": torch.__version__}
        Path(os.environ[RESULT]).write_text(json.dumps(result), encoding="utf-8")


def _now() -> tuple[float, float]:
    return _cpu_s(), time.perf_counter()


def _cpu_s() -> float:
    """CPU time so far of this process, its descendants, and their finished children."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it ended meanwhile
            # After the name in parentheses: state, parent, ... ; user, system and those of children at 11 to 14.
            fields = text.rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    me = os.getpid()
    family = {me}
    while True:
        more = {process for process, parent in parents.items() if parent in family} - family
        if not more:
            break
        family |= more
    return sum(ticks[process] for process in family) / os.sysconf("SC_CLK_TCK")
