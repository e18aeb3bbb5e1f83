"""Scores of a global model for each device.

If the task says which vehicle recorded each test sample, the score of a vehicle is that on its own test samples.
Otherwise the score of a device follows its class shares: score_n = sum over classes c of (share of c among the training
samples of n) * (accuracy on the test samples of c). This is the expected accuracy on new data like the device's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Floats, Ints
from wayfare.learning.tasks.base import Metric


@runtime_checkable
class JudgedInParts(Protocol):
    """A task whose score can be computed on parts of the test set."""

    @property
    def test_classes(self) -> Ints | None:
        """The class of every test sample if the score is the accuracy, otherwise None."""
        ...

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The score on each part, a tensor of test sample numbers."""
        ...


class DeviceScores:
    """Evaluates a model for each device, from scores on parts of the test set and weights (devices, parts)."""

    def __init__(self, task: JudgedInParts, metric: Metric, parts: Sequence[Ints], weights: Floats | None) -> None:
        self._task, self._metric, self._weights = task, metric, weights
        self._parts = [torch.from_numpy(part) for part in parts]

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """The mean over all devices, and over the worst tenth."""
        where = next(module.parameters()).device
        scores = self._task.scores_of_parts(module, [part.to(where) for part in self._parts])
        by_device = scores if self._weights is None else [float(one) for one in self._weights @ np.array(scores)]
        name = self._metric.name
        return {
            f"{name}_device_mean": fmean(by_device),
            f"{name}_worst_tenth": worst_tenth(by_device, better=self._metric.better),
        }


def worst_tenth(scores: Sequence[float], *, better: Literal["higher", "lower"]) -> float:
    """The mean over the tenth of devices with the worst scores, rounded up to whole devices."""
    worst_first = sorted(scores, reverse=better == "lower")
    return fmean(worst_first[: math.ceil(len(scores) / 10)])
