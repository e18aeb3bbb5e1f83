"""Your own task from data, a network and a loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wayfare.arrays import Ints
from wayfare.errors import InputError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.models.base import Model
from wayfare.learning.models.trial import constants_of
from wayfare.learning.models.wrapped import Copies, Wrapped
from wayfare.learning.tasks.base import ACCURACY, Evaluation, Metric, placed
from wayfare.learning.tasks.division import Division, division_by_device, division_by_vehicle
from wayfare.learning.tasks.given import Data, encode_numbers, encode_texts, read_pair
from wayfare.learning.tasks.inputs import InputForm, find_form
from wayfare.learning.tasks.judges import (
    BY_ENTRY,
    MODULES_BY_ENTRY,
    Judge,
    judge_on,
    may_pair,
    number_of,
    paired,
    reject_judges,
    reject_pairs,
)

_EVALUATED_AT_ONCE = 1000

LOSS = Metric(name="loss", better="lower")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OwnTask:
    """A task with samples in memory, any network and any loss; built by `own_task`."""

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
    form: InputForm = field(default_factory=InputForm)
    class_names: tuple[str, ...] = ()
    division: Division | None = None
    test_division: Division | None = None

    def __repr__(self) -> str:
        samples = f"{len(self.train[1]):,} training samples, {len(self.test[1]):,} test samples"
        return f"<OwnTask {self.name}: {samples}, {self.model.parameters:,} parameters, {self.metric.name}>"

    def class_of_samples(self) -> Ints:
        return self.kinds

    @property
    def labels(self) -> Ints | None:
        """The class of every training sample, or None if targets are not classes."""
        targets = self.train[1]
        return targets.cpu().numpy() if _are_classes(targets) else None

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        inputs, targets = self.minibatch(samples, next(module.parameters()).dtype)
        return self.loss_on(module(inputs), targets)

    def minibatch(self, samples: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
        """Some training inputs, with real numbers of a type, and their targets."""
        inputs, targets = (each.index_select(0, samples) for each in self.train)
        return self.form.converted(inputs, real), targets

    def loss_on(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of a network's outputs."""
        targets = paired(self.loss_of, outputs, targets)
        try:
            return self.loss_of(outputs, targets)
        except IndexError as error:
            if self.loss_of is not nn.functional.cross_entropy:
                raise
            raise InputError(
                f"{self.name}: labels go up to {int(self.train[1].max())}, but the outputs of the network have shape "
                f"{tuple(outputs.shape[1:])} per sample; it needs one output per class"
            ) from error

    @property
    def averages(self) -> bool:
        """Whether the loss on several minibatches of one size is known to be the mean of their losses."""
        if isinstance(self.loss_of, nn.CrossEntropyLoss | nn.NLLLoss):
            plain = self.loss_of.reduction == "mean" and self.loss_of.weight is None and self.loss_of.ignore_index < 0
            return plain and _are_all_used(self.train[1])
        if isinstance(self.loss_of, MODULES_BY_ENTRY):
            return self.loss_of.reduction == "mean" and not list(self.loss_of.buffers())
        if self.loss_of in (nn.functional.cross_entropy, nn.functional.nll_loss):
            return _are_all_used(self.train[1])
        return self.loss_of in BY_ENTRY

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Score, loss and other metrics of the whole test set.

        To save memory, the network processes the test set in chunks. Few metrics are means over chunks, so all metrics
        are computed once, from the outputs of all chunks.
        """
        outputs, targets = self.outputs(module), self.test[1]
        return Evaluation(
            score=number_of(self.score_of, outputs, targets),
            loss=number_of(self.loss_of, outputs, targets),
            others={name: number_of(judge, outputs, targets) for name, judge in self.others.items()},
        )

    @property
    def test_classes(self) -> Ints | None:
        """The class of every test sample if partitions use classes and the score is the accuracy, otherwise None."""
        if self.score_of is not accuracy or self.labels is None or not np.array_equal(self.kinds, self.labels):
            return None
        classes: Ints = self.test[1].cpu().numpy()
        return classes

    def scores_of_parts(self, module: nn.Module, parts: Sequence[Tensor]) -> list[float]:
        """The score on parts of the test set."""
        outputs, targets = self.outputs(module), self.test[1]
        return [number_of(self.score_of, tree_map(itemgetter(part), outputs), targets[part]) for part in parts]

    def outputs(self, module: nn.Module) -> Any:
        """The outputs of a module for all test samples."""
        pieces = self.test[0].split(_EVALUATED_AT_ONCE)
        return _joined([module(self._converted(module, piece)) for piece in pieces])

    def _converted(self, module: nn.Module, inputs: Tensor) -> Tensor:
        return self.form.converted(inputs, next(module.parameters()).dtype)

    def to(self, device: torch.device) -> Self:
        (train, targets), (test, judged_by) = self.train, self.test
        return replace(
            self,
            train=(placed(train, device), placed(targets, device)),
            test=(placed(test, device), placed(judged_by, device)),
            loss_of=judge_on(self.loss_of, device),
            score_of=judge_on(self.score_of, device),
        )


def own_task(
    name: str,
    *,
    train: Data,
    test: Data | None = None,
    network: Callable[[], nn.Module] | nn.Module,
    loss: Judge | None = None,
    score: Judge | None = None,
    metric: Metric | None = None,
    others: Mapping[str, Judge] | None = None,
    kinds: NDArray[Any] | None = None,
    devices: Sequence[Any] | None = None,
    vehicles: Any = None,
    test_vehicles: Any = None,
) -> OwnTask:
    """Build a task from data, a network and a loss.

    ``train`` and ``test`` are pairs (inputs, targets) of arrays, tensors, frames or lists, or data sets of PyTorch,
    torchvision or Hugging Face. A dictionary with both, such as a `DatasetDict`, needs no ``test``. Bytes are words or
    pixels, depending on what the network accepts; pixels are scaled to 0..1 and have the channels first. ``network`` is
    a function that builds the network, or a module; every run starts with the weights of a module.

    Integer and string targets are classes: the default loss is cross-entropy, the score is the accuracy, and a
    partition uses the classes. Other targets need a ``loss``, which is also the score.

    ``score`` (with a ``metric`` that names it) replaces the score, ``others`` are more metrics by name, and ``kinds``
    are other groups for the partition. Metrics receive the outputs and targets of the whole test set; they are
    functions or metrics of torchmetrics.

    ``devices`` lists the training sample numbers of each device. ``vehicles`` names the vehicle that recorded each
    training sample; on a trace, the vehicle of that name gets the samples. Either replaces the scenario's partition.
    ``test_vehicles`` names the vehicle of each test sample, so that the model is also evaluated for each vehicle.
    """
    if test is None and not isinstance(train, Mapping):
        raise InputError(f"{name}: test = None: must be test data, unless train is a dictionary with train and test")
    (train_inputs, train_targets), (test_inputs, test_targets) = (
        read_pair(data, name, part) for part, data in (("train", train), ("test", train if test is None else test))
    )
    reject_judges({"loss": loss, "score": score, **_named(others)}, name)
    build = Copies(copy.deepcopy(network)) if isinstance(network, nn.Module) else network
    # Two samples, because normalisation cannot train on one.
    few = train_inputs[[0, min(1, len(train_inputs) - 1)]]
    form, outputs = find_form(Wrapped(build), few, name)
    if test_inputs.shape[1:] != train_inputs.shape[1:]:
        find_form(Wrapped(build), test_inputs[[0, min(1, len(test_inputs) - 1)]], f"{name}: test")
    constants = constants_of(Wrapped(build), form.converted(form.arranged(few), torch.float32), name)
    targets, judged_by, class_names = _numbers(train_targets, test_targets, outputs, loss, name)
    labelled = _are_classes(targets)
    if loss is None and not labelled:
        what = "real numbers" if targets.is_floating_point() else "several integers per sample"
        raise InputError(
            f"{name}: the targets are {what}, of shape {tuple(targets.shape)}; give a loss, such as "
            "`loss=torch.nn.functional.mse_loss` for a regression"
        )
    loss = loss or nn.functional.cross_entropy
    groups = _groups(kinds, targets, name)
    if score is None:
        if labelled:
            _reject_classes(outputs, targets, judged_by, name)
        score = accuracy if labelled else loss
        metric = metric or (ACCURACY if labelled else LOSS)
    if callable(metric) and not isinstance(metric, Metric):
        called = getattr(metric, "__name__", type(metric).__name__)
        example = f'`score={called}, metric=wayfare.Metric(name="{called}", better="higher")` or "lower"'
        raise InputError(f"{name}: metric = {called}: is a function; give it as the score: {example}")
    if not isinstance(metric, Metric):
        example = f'`metric=wayfare.Metric(name="{metric or "R2"}", better="higher")` or "lower"'
        raise InputError(f"{name}: metric = {metric!r}: must name the score and say which is better: {example}")
    task = OwnTask(
        name=name,
        model=Wrapped(build, constants),
        metric=metric,
        classes=int(groups.max()) + 1,
        kinds=groups,
        train=(form.arranged(train_inputs), targets),
        test=(form.arranged(test_inputs), judged_by),
        loss_of=loss,
        score_of=score,
        others=dict(others or {}),
        form=form,
        class_names=class_names if kinds is None else (),
        division=_division(devices, vehicles, len(targets), name),
        test_division=_test_division(vehicles, test_vehicles, len(judged_by), name),
    )
    _reject_missing_values(task)
    if may_pair(outputs, targets):
        some = torch.arange(min(8, len(targets)))
        reject_pairs({"loss": loss, "score": score, **_named(others)}, _untrained(task, some), targets[some], name)
    return task


def _numbers(
    train: Tensor | list[str], test: Tensor | list[str], outputs: Any, loss: Judge | None, name: str
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Targets as numbers, with labels from 0 on, and the class names if labels were changed."""
    if isinstance(train, list):
        return encode_texts(train, test, name)
    if isinstance(test, list):
        raise InputError(f"{name}: the targets of train are numbers and those of test are strings")
    if loss is not None:
        return train, test, ()
    # Labels of shape (n, 1) count as (n,).
    train, test = _without_column(train), _without_column(test)
    if not _are_classes(train) or not isinstance(outputs, Tensor) or outputs.ndim != 2:
        return train, test, ()
    return encode_numbers(train, test, outputs.shape[1], name)


def _groups(kinds: NDArray[Any] | None, targets: Tensor, name: str) -> Ints:
    """The groups for partitions: `kinds`, or else the classes."""
    if kinds is not None:
        groups = np.asarray(kinds)
    elif not _are_classes(targets):
        groups = np.zeros(len(targets), dtype=np.int64)
    else:
        # A custom loss may use labels below 0.
        groups = targets.numpy() if int(targets.min()) >= 0 else np.unique(targets.numpy(), return_inverse=True)[1]
    if groups.shape != (len(targets),) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise InputError(f"{name}: kinds must be an integer of at least 0 for each of the {len(targets)} samples")
    return groups.astype(np.int64)


def _division(devices: Sequence[Any] | None, vehicles: Any, samples: int, name: str) -> Division | None:
    if devices is not None and vehicles is not None:
        raise InputError(f"{name}: give devices or vehicles, not both")
    if devices is not None:
        return division_by_device(devices, samples, name)
    return None if vehicles is None else division_by_vehicle(vehicles, samples, name)


def _test_division(vehicles: Any, test_vehicles: Any, samples: int, name: str) -> Division | None:
    if test_vehicles is None:
        return None
    if vehicles is None:
        raise InputError(f"{name}: test_vehicles: also give vehicles, the vehicle of each training sample")
    return division_by_vehicle(test_vehicles, samples, name, "test_vehicles")


def _reject_missing_values(task: OwnTask) -> None:
    """Raise InputError for NaN or infinity in the data, unless the loss on it is finite."""
    for part, data in (("train", task.train), ("test", task.test)):
        for what, values in zip(("inputs", "targets"), data, strict=True):
            if not values.is_floating_point():
                continue
            bad = (~torch.isfinite(values)).reshape(len(values), -1).any(dim=1).nonzero().flatten()
            if len(bad) and not _is_finite(replace(task, train=data), bad[:8]):
                kind = "NaN" if bool(values[bad].isnan().any()) else "infinity"
                raise InputError(
                    f"{task.name}: {part}: {kind} in the {what} of {len(bad)} of {len(values)} samples; the first has "
                    f"index {int(bad[0])}"
                )


def _is_finite(task: OwnTask, samples: Tensor) -> bool:
    """Whether an untrained network has a finite loss on some samples."""
    return math.isfinite(float(task.loss_on(_untrained(task, samples), task.train[1][samples])))


@torch.no_grad()
def _untrained(task: OwnTask, samples: Tensor) -> Any:
    """The outputs of an untrained network for some training samples."""
    with seeded_generators(samples.device) as set_seed:
        set_seed(0)
        return task.model.module().eval()(task.minibatch(samples, torch.float32)[0])


def _named(others: Mapping[str, Judge] | None) -> dict[str, Judge]:
    return {f"others.{key}": each for key, each in (others or {}).items()}


def _reject_classes(outputs: Any, train: Tensor, test: Tensor, name: str) -> None:
    """Raise InputError if the accuracy cannot be read from the outputs."""
    if not isinstance(outputs, Tensor):
        shown = f"returns {type(outputs).__name__}"
    elif outputs.ndim < 2 or outputs.shape[1] < 2:
        shown = f"has outputs of shape {tuple(outputs.shape[1:])} per sample"
    else:
        least, most = int(min(train.min(), test.min())), int(max(train.max(), test.max()))
        if least >= 0:
            return
        shown = f"has outputs for classes from 0 on, and the labels go from {least} to {most}"
    raise InputError(
        f"{name}: score = None: is the accuracy for integer targets, which needs one output for each class, but the "
        f"network {shown}; give a score and its metric, or targets of real numbers for a regression"
    )


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of samples whose largest output is their class."""
    return (outputs.argmax(dim=1) == targets).double().mean()


def _joined(pieces: Sequence[Any]) -> Any:
    """Concatenate the outputs of all chunks: tensors, or tensors in tuples, lists or dictionaries."""
    return tree_map(lambda *tensors: torch.cat(tensors), *pieces)


def _without_column(targets: Tensor) -> Tensor:
    """Labels of shape (n, 1) as (n,)."""
    return targets.squeeze(1) if targets.shape[1:] == (1,) and not targets.is_floating_point() else targets


def _are_all_used(targets: Tensor) -> bool:
    """Whether no target can be one that a loss ignores, by default -100."""
    return targets.is_floating_point() or int(targets.min()) >= 0


def _are_classes(targets: Tensor) -> bool:
    """Whether targets are integers, one per sample."""
    return not targets.is_floating_point() and targets.ndim == 1
