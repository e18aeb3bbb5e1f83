"""A task: data to learn from, data to be judged by, and a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wayfare.learning.models.mlp import Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Classification of fixed-size inputs. Inputs are float32, labels int64."""

    name: str
    model: Mlp
    classes: int
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
