"""A task without data: the network, the loss and the score. In the field every device adds its own folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Ints
from wayfare.errors import InputError, ScenarioError
from wayfare.learning.folders import FolderSamples, Wanted
from wayfare.learning.models.base import Model
from wayfare.learning.models.trial import constants_of
from wayfare.learning.models.wrapped import Copies, Wrapped
from wayfare.learning.tasks.base import ACCURACY, Evaluation, Metric
from wayfare.learning.tasks.inputs import InputForm, find_form
from wayfare.learning.tasks.judges import Judge, number_of
from wayfare.learning.tasks.own import LOSS, OwnTask, accuracy, own_task

_EVALUATED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalTask:
    """What server and devices share of a task; built by `local_task`."""

    name: str
    model: Model
    metric: Metric
    wanted: Wanted
    sample: Tensor  # one input
    loss_of: Judge
    score_of: Judge
    form: InputForm = field(default_factory=InputForm)

    def over(self, inputs: Tensor, targets: Tensor) -> OwnTask:
        """The task on some samples in memory, which are both its training and its test set."""
        pair = self.form.arranged(inputs), targets
        return OwnTask(
            name=self.name,
            model=self.model,
            metric=self.metric,
            classes=max(self.wanted.classes, 1),
            kinds=np.zeros(len(targets), dtype=np.int64),
            train=pair,
            test=pair,
            loss_of=self.loss_of,
            score_of=self.score_of,
            form=self.form,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FolderTask:
    """A local task with the samples of one folder, read when they are needed."""

    task: LocalTask
    samples: FolderSamples
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def model(self) -> Model:
        return self.task.model

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def classes(self) -> int:
        return max(self.task.wanted.classes, 1)

    def class_of_samples(self) -> Ints:
        if not self.task.wanted.classes:
            return np.zeros(len(self.samples), dtype=np.int64)
        classes: Ints = self.samples.targets
        return classes

    def loss(self, module: nn.Module, samples: Tensor, crops: Tensor | None = None) -> Tensor:
        over = self._over(samples.cpu().numpy())
        return over.loss(module, torch.arange(len(samples), device=self.device))

    def evaluate(self, module: nn.Module) -> Evaluation:
        """Score and loss of all samples of the folder."""
        if not len(self.samples):
            raise ScenarioError("data", str(self.samples.folder), f"has no samples for the task {self.name}")
        pieces = np.array_split(np.arange(len(self.samples)), -(-len(self.samples) // _EVALUATED_AT_ONCE))
        outputs = torch.cat([self._over(piece).outputs(module) for piece in pieces])
        targets = torch.from_numpy(self.samples.targets).to(self.device)
        return Evaluation(
            score=number_of(self.task.score_of, outputs, targets), loss=number_of(self.task.loss_of, outputs, targets)
        )

    def to(self, device: torch.device) -> Self:
        return type(self)(task=self.task, samples=self.samples, device=device)

    def _over(self, samples: Ints) -> OwnTask:
        inputs, targets = self.samples.batch(samples)
        return self.task.over(inputs.to(self.device), targets.to(self.device))


def folder_task(task: LocalTask, folder: Path, cache: Path) -> FolderTask:
    return FolderTask(task=task, samples=FolderSamples(folder, task.wanted, cache))


def local_task(
    name: str,
    *,
    network: Callable[[], nn.Module] | nn.Module,
    sample: Any,
    classes: int | Sequence[str] = 0,
    loss: Judge | None = None,
    score: Judge | None = None,
    metric: Metric | None = None,
    load: Callable[[Path], Any] | None = None,
) -> LocalTask:
    """Build a task whose data lie on the devices.

    ``network`` is a function that builds the network, or a module. ``sample`` is one input of the right shape and type,
    such as `torch.zeros(3, 64, 64)`; its values do not matter. If it holds real numbers, inputs are converted to them,
    and pixels are between 0 and 1. ``classes`` is the number of classes, or their names if
    labels are texts. With classes the loss is the cross-entropy and the score the accuracy. Otherwise give a ``loss``,
    a function of outputs and targets, which is also the score. ``score`` and ``metric`` replace them as in `own_task`.

    ``load`` reads the folder of a device: a function from its path to a pair (inputs, labels) of arrays, or to a data
    set of PyTorch. It is called again when the folder changes. Without it Wayfare reads `.npz`, `.pt`, `.parquet` and
    `.csv` files, and images in folders named by class.
    """
    names = () if isinstance(classes, int) else tuple(map(str, classes))
    count = classes if isinstance(classes, int) else len(names)
    example = torch.as_tensor(sample)
    if count < 0 or (count == 0 and loss is None):
        raise InputError(f"{name}: classes = {count}: must be at least 1, or give a loss")
    if isinstance(load, type) and not callable(load):
        raise InputError(f"{name}: load = {load!r}: must be a function of a folder")
    build = Copies(copy.deepcopy(network)) if isinstance(network, nn.Module) else network
    # Two samples, because normalisation cannot train on one.
    few = torch.stack([example, example])
    form, outputs = find_form(Wrapped(build), few, name)
    constants = constants_of(Wrapped(build), form.converted(form.arranged(few), torch.float32), name)
    if loss is None and isinstance(outputs, Tensor) and tuple(outputs.shape[1:]) != (count,):
        raise InputError(f"{name}: the network has outputs of shape {tuple(outputs.shape[1:])}, for {count} classes")
    if score is None:
        score, metric = (loss, metric or LOSS) if loss is not None else (accuracy, ACCURACY)
    if metric is None:
        raise InputError(f"{name}: metric = None: must name the score, as in wayfare.Metric(name=..., better=...)")
    return LocalTask(
        name=name,
        model=Wrapped(build, constants),
        metric=metric,
        wanted=Wanted(
            shape=tuple(example.shape),
            classes=count,
            class_names=names,
            real_numbers=example.is_floating_point(),
            load=load,
        ),
        sample=example,
        loss_of=loss or nn.functional.cross_entropy,
        score_of=score,
        form=form,
    )


def simulated_task(task: LocalTask, folders: Sequence[str | Path], heldout: str | Path) -> OwnTask:
    """The same task for the simulator, in memory. Each folder is the data of the vehicle of its name."""
    places = [Path(folder) for folder in (*folders, heldout)]
    with TemporaryDirectory() as cache:
        read = [FolderSamples(place, task.wanted, Path(cache, str(number))) for number, place in enumerate(places)]
        *trained, judged = [samples.batch(np.arange(len(samples))) for samples in read]
    inputs, targets = (torch.cat(each) for each in zip(*trained, strict=True))
    assert isinstance(task.model, Wrapped)
    return own_task(
        task.name,
        train=(inputs, targets),
        test=judged,
        network=task.model.build,
        loss=None if task.wanted.classes and task.loss_of is nn.functional.cross_entropy else task.loss_of,
        score=task.score_of,
        metric=task.metric,
        vehicles=np.repeat([place.name for place in places[:-1]], [len(each) for _, each in trained]),
    )
