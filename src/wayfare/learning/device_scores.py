"""How good a global model is for each device.

A vehicle is judged on the test samples that it recorded, where these are known. Otherwise a device is judged by its own
mix of classes: score_n = sum over classes c of (share of c among the training samples of n) * (accuracy on the test
samples of c). That is the accuracy to be expected on new data like those of the device.
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
        """The class of every test sample, where the score is the accuracy; None where it is anything else."""
        ...

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The score on some test samples, for each of several lists of them."""
        ...


class DeviceScores:
    """Judges a model for each device: by parts of the test set, and the weight of each part for each device."""

    def __init__(self, task: JudgedInParts, metric: Metric, parts: Sequence[Ints], weights: Floats | None) -> None:
        self._task, self._metric, self._weights = task, metric, weights
        self._parts = [torch.from_numpy(part) for part in parts]

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """The mean over devices, and that of the worst tenth."""
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
