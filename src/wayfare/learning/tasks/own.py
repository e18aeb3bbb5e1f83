"""A task of one's own: data, a network, a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wayfare.arrays import Ints
from wayfare.errors import InputError
from wayfare.learning.models.base import Model
from wayfare.learning.models.trial import constants_of
from wayfare.learning.models.wrapped import Wrapped
from wayfare.learning.tasks.base import ACCURACY, Evaluation, Metric

_EVALUATED_AT_ONCE = 1000

LOSS = Metric(name="loss", better="lower")

_BY_ENTRY = (
    nn.functional.mse_loss,
    nn.functional.l1_loss,
    nn.functional.smooth_l1_loss,
    nn.functional.huber_loss,
    nn.functional.binary_cross_entropy,
    nn.functional.binary_cross_entropy_with_logits,
)
_MODULES_BY_ENTRY = nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss

Judge: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to one number."""


@runtime_checkable
class _Items(Sized, Protocol):
    """A data set of PyTorch: pairs of an input and a target, by number."""

    def __getitem__(self, place: int, /) -> Any: ...


@runtime_checkable
class _Accumulating(Protocol):
    """A metric that remembers the samples it has seen."""

    def reset(self) -> None: ...


Data: TypeAlias = _Items | tuple[NDArray[Any] | Tensor, NDArray[Any] | Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnTask:
    """Samples in memory, any network, any loss; made by `own_task`."""

    name: str
    model: Model
    metric: Metric
    classes: int
    kinds: Ints
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    loss_of: Judge
    score_of: Judge
    others: Mapping[str, Judge] = field(default_factory=dict)

    def class_of_samples(self) -> Ints:
        """The kinds a partition tells apart."""
        return self.kinds

    @property
    def labels(self) -> Ints | None:
        """The class of every training sample, where targets are classes."""
        targets = self.train[1]
        return targets.cpu().numpy() if _are_classes(targets) else None

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        """The loss on some training samples."""
        inputs, targets = (each.index_select(0, samples) for each in self.train)
        if inputs.is_floating_point():
            inputs = inputs.to(next(module.parameters()).dtype)
        outputs = module(inputs)
        return self.loss_of(outputs, _paired(self.loss_of, outputs, targets))

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Score, loss and other metrics, each of the whole test set.

        The network sees the test set in pieces, to save memory. Few metrics are means of those of pieces, so all are
        computed once, from the outputs of all pieces.
        """
        inputs, targets = self.test
        outputs = _joined([module(piece) for piece in inputs.split(_EVALUATED_AT_ONCE)])
        return Evaluation(
            score=_number(self.score_of, outputs, targets),
            loss=_number(self.loss_of, outputs, targets),
            others={name: _number(judge, outputs, targets) for name, judge in self.others.items()},
        )

    def to(self, device: torch.device) -> Self:
        """Move the data."""
        (train, targets), (test, judged_by) = self.train, self.test
        return replace(self, train=(train.to(device), targets.to(device)), test=(test.to(device), judged_by.to(device)))


def own_task(
    name: str,
    *,
    train: Data,
    test: Data,
    network: Callable[[], nn.Module],
    loss: Judge | None = None,
    score: Judge | None = None,
    metric: Metric | None = None,
    others: Mapping[str, Judge] | None = None,
    kinds: NDArray[Any] | None = None,
) -> OwnTask:
    """A task from data, a function that builds a network, and a loss.

    ``train`` and ``test`` are a pair of arrays or tensors (inputs, targets) or a data set of PyTorch. Whole-numbered
    targets are classes: the default loss is cross-entropy, they are judged by accuracy, and a partition deals by them.
    Other targets need a ``loss``, which also judges them.

    ``score`` (with a ``metric`` that names it) judges differently, ``others`` are more metrics by name, and ``kinds``
    are other groups to deal by. Metrics take the outputs and targets of the whole test set; functions and metrics of
    torchmetrics fit.
    """
    pairs = _tensors(train, f"{name}: train"), _tensors(test, f"{name}: test")
    if loss is None:
        # A column of labels is a list of labels.
        pairs = _without_column(*pairs[0]), _without_column(*pairs[1])
    targets = pairs[0][1]
    labelled = _are_classes(targets)
    if loss is None and not labelled:
        what = "real numbers" if targets.is_floating_point() else "several whole numbers for a sample"
        raise InputError(
            f"{name}: the targets are {what}, of shape {tuple(targets.shape)}; such a task needs a loss of its own, "
            "for a regression `loss=torch.nn.functional.mse_loss`"
        )
    loss = loss or nn.functional.cross_entropy
    if kinds is None:
        kinds = targets.numpy() if labelled else np.zeros(len(targets), dtype=np.int64)
    groups = np.asarray(kinds)
    if groups.shape != (len(targets),) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise InputError(f"{name}: kinds must be a whole number from 0 on for each of the {len(targets)} samples")
    if score is None:
        score = accuracy if labelled else loss
        metric = metric or (ACCURACY if labelled else LOSS)
    if metric is None:
        raise InputError(f"{name}: a score of your own needs a metric that names it and says what is better")
    return OwnTask(
        name=name,
        model=_model(network, pairs[0][0], name),
        metric=metric,
        classes=int(groups.max()) + 1,
        kinds=groups.astype(np.int64),
        train=pairs[0],
        test=pairs[1],
        loss_of=loss,
        score_of=score,
        others=dict(others or {}),
    )


def _model(network: Callable[[], nn.Module], inputs: Tensor, name: str) -> Wrapped:
    """The network as a model, after a pass of two samples; normalisation does not train on one."""
    few = inputs[[0, min(1, len(inputs) - 1)]]
    return Wrapped(network, constants_of(Wrapped(network), few, name))


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of samples whose largest output is their class."""
    return (outputs.argmax(dim=1) == targets).double().mean()


def _paired(judge: Judge, outputs: Any, targets: Tensor) -> Tensor:
    """Targets in the shape of the outputs where a loss compares the two entry by entry.

    Outputs (n, 1) and targets (n,) would otherwise be compared as n x n pairs.
    """
    if judge not in _BY_ENTRY and not isinstance(judge, _MODULES_BY_ENTRY):
        return targets
    if outputs.shape == targets.shape:
        return targets
    if outputs.numel() != targets.numel():
        raise InputError(
            f"the network gives outputs of shape {tuple(outputs.shape[1:])} for a sample, and its target has the shape "
            f"{tuple(targets.shape[1:])}"
        )
    return targets.view_as(outputs)


def _joined(pieces: Sequence[Any]) -> Any:
    """The outputs of all pieces as one; a network may give a tensor, or tensors in tuples, lists or dictionaries."""
    return tree_map(lambda *tensors: torch.cat(tensors), *pieces)


def _number(judge: Judge, outputs: Any, targets: Tensor) -> float:
    """One metric of the whole test set."""
    value = float(judge(outputs, _paired(judge, outputs, targets)))
    if isinstance(judge, _Accumulating):
        # A metric of torchmetrics keeps what it has seen until told otherwise.
        judge.reset()
    return value


def _without_column(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Labels of shape (n, 1) as (n,)."""
    is_column = targets.shape[1:] == (1,) and not targets.is_floating_point()
    return inputs, targets.squeeze(1) if is_column else targets


def _are_classes(targets: Tensor) -> bool:
    """Whether targets are whole numbers, one for each sample."""
    return not targets.is_floating_point() and targets.ndim == 1


def _tensors(data: Data, where: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets in memory, in types that networks and losses take."""
    if isinstance(data, tuple) and len(data) == 2:
        inputs, targets = (torch.as_tensor(each) for each in data)
    elif isinstance(data, _Items) and len(data):
        items = [data[place] for place in range(len(data))]
        inputs, targets = (torch.stack([torch.as_tensor(item[part]) for item in items]) for part in (0, 1))
    else:
        raise InputError(f"{where}: must be a pair of arrays or a data set of PyTorch, with at least one sample")
    if len(inputs) != len(targets) or not len(inputs):
        raise InputError(f"{where}: has {len(inputs)} inputs and {len(targets)} targets")
    return (
        inputs.float() if inputs.is_floating_point() else inputs,
        targets.float() if targets.is_floating_point() else targets.long(),
    )
