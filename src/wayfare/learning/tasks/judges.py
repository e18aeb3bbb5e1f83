"""Losses and metrics of own tasks: functions of outputs and targets."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from wayfare.errors import InputError
from wayfare.learning.chance import seeded_generators

BY_ENTRY = (
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy,
    nn.functional.binary_cross_entropy_with_logits,
)
MODULES_BY_ENTRY = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss

Judge: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to one number."""


@runtime_checkable
class _Accumulating(Protocol):
    """A metric that accumulates samples, such as those of torchmetrics."""

    def reset(self) -> None: ...


def reject_judges(judges: Mapping[str, object], name: str) -> None:
    """Raise InputError for losses and metrics that are no functions, or that would have to be trained."""
    for field_, judge in judges.items():
        if isinstance(judge, type):
            raise InputError(f"{name}: {field_} = {judge.__name__}: is a class; write {judge.__name__}()")
        if judge is not None and not callable(judge):
            raise InputError(f"{name}: {field_} = {judge!r}: must be a function of outputs and targets")
        if isinstance(judge, nn.Module) and any(parameter.requires_grad for parameter in judge.parameters()):
            raise InputError(
                f"{name}: {field_} = {type(judge).__name__}: has parameters, which devices would not train; make them "
                "part of the network"
            )


def may_pair(outputs: Any, targets: Tensor) -> bool:
    """Whether outputs have shape (n, 1) and targets (n,), or the reverse, which broadcast to n x n pairs."""
    return isinstance(outputs, Tensor) and {outputs.shape[1:], targets.shape[1:]} == {(), (1,)}


@torch.no_grad()
def reject_pairs(judges: Mapping[str, Judge], outputs: Tensor, targets: Tensor, name: str) -> None:
    """Raise InputError for a judge that compares all pairs of outputs and targets, whose shapes differ (`may_pair`).

    It then has another value for equal shapes, which is the same for two columns as for two rows.
    """
    for field_, judge in judges.items():
        if judge in BY_ENTRY or isinstance(judge, MODULES_BY_ENTRY):
            continue
        try:
            given, rows, columns = (
                _seeded(judge, outputs.view(one), targets.view(other))
                for one, other in ((outputs.shape, targets.shape), ((-1,), (-1,)), ((-1, 1), (-1, 1)))
            )
        except Exception:  # a judge may insist on the shapes that it was written for
            continue
        if math.isclose(rows, columns, rel_tol=1e-4) and not math.isclose(given, rows, rel_tol=1e-2):
            raise InputError(
                f"{name}: {field_}: compares all pairs of outputs of shape {_shape(outputs)} and targets of shape "
                f"{_shape(targets)}; make the shapes equal, for example with outputs.view_as(targets)"
            )


def _seeded(judge: Judge, outputs: Tensor, targets: Tensor) -> float:
    """The value of a judge, which may draw random numbers."""
    with seeded_generators(outputs.device) as set_seed:
        set_seed(0)
        return number_of(judge, outputs, targets)


def _shape(batch: Tensor) -> str:
    return "(n, 1)" if batch.dim() == 2 else "(n,)"


def paired(judge: Judge, outputs: Any, targets: Tensor) -> Tensor:
    """Targets in the shape of the outputs, for losses that compare entry by entry.

    Otherwise outputs (n, 1) and targets (n,) would broadcast to n x n pairs.
    """
    if judge not in BY_ENTRY and not isinstance(judge, MODULES_BY_ENTRY):
        return targets
    if outputs.shape == targets.shape:
        return targets
    if outputs.numel() != targets.numel():
        raise InputError(
            f"per sample, the outputs of the network have shape {tuple(outputs.shape[1:])} and the targets "
            f"{tuple(targets.shape[1:])}; they need the same number of entries"
        )
    return targets.view_as(outputs)


def number_of(judge: Judge, outputs: Any, targets: Tensor) -> float:
    value = float(judge(outputs, paired(judge, outputs, targets)))
    if isinstance(judge, _Accumulating):
        # A metric of torchmetrics keeps its samples until it is reset.
        judge.reset()
    return value


def judge_on(judge: Judge, device: torch.device) -> Judge:
    """A judge whose tensors, such as the weights of classes, are on a device."""
    if not isinstance(judge, nn.Module) or all(buffer.device == device for buffer in judge.buffers()):
        return judge
    return copy.deepcopy(judge).to(device)
