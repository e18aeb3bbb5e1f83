"""The tasks that a scenario can name: Wayfare's, those in a file, and those of other packages (`wayfare.tasks`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from wayfare.errors import ScenarioError
from wayfare.learning.models.base import Model
from wayfare.learning.tasks import argoverse, fashion_small, images, pretrained
from wayfare.learning.tasks.base import Classification, Evaluation, Metric, Task
from wayfare.learning.tasks.from_file import forget_tasks, local_task_from_file, named_in_file, task_from_file
from wayfare.learning.tasks.local import LocalTask, local_task, simulated_task
from wayfare.learning.tasks.own import own_task
from wayfare.scenario.load import names_python_file
from wayfare.scenario.model import NO_BACKBONE, Learning

__all__ = [
    "Classification",
    "Evaluation",
    "LocalTask",
    "Metric",
    "Task",
    "class_names",
    "forget_tasks",
    "is_from_file",
    "load_task",
    "local_task",
    "local_task_of",
    "model_of",
    "name_of",
    "own_task",
    "simulated_task",
]

GROUP = "wayfare.tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """One of Wayfare's tasks: its networks, the default first, and how to build it."""

    networks: tuple[str, ...]
    model: Callable[[Learning, str], Model]
    task: Callable[[Learning, Model], Task]
    augments: bool  # whether its samples can be shifted and mirrored
    classifies: bool = True  # whether a network's outputs are logits of the classes that a partition uses


TASKS: Mapping[str, _Known] = {
    "fashion-small": _Known(
        networks=fashion_small.NETWORKS,
        model=fashion_small.fashion_small_model,
        task=fashion_small.fashion_small_task,
        augments=False,
    ),
    "fashion": _Known(networks=("mlp", "cnn"), model=images.set_model, task=images.set_task, augments=True),
    "cifar10": _Known(networks=("resnet9", "cnn"), model=images.set_model, task=images.set_task, augments=True),
    "argoverse": _Known(
        networks=argoverse.NETWORKS,
        model=argoverse.argoverse_model,
        task=argoverse.argoverse_task,
        augments=True,
        classifies=False,
    ),
}


def load_task(learning: Learning) -> Task:
    if learning.backbone != NO_BACKBONE:
        return pretrained.pretrained_task(learning)
    if learning.task in TASKS:
        return TASKS[learning.task].task(learning, model_of(learning))
    return _external_task(learning)


def model_of(learning: Learning) -> Model:
    """The network of a scenario, without its data."""
    known = TASKS.get(learning.task)
    if learning.backbone != NO_BACKBONE:
        return pretrained.pretrained_model(learning)
    if known is None:
        return _external(learning).model
    if learning.network not in ("auto", *known.networks):
        rule = f"must be {' or '.join(known.networks)} for the task {learning.task}"
        raise ScenarioError("learning.network", learning.network, rule)
    if learning.augment and not known.augments:
        raise ScenarioError("learning.augment", learning.augment, f"{learning.task} has no images to shift and mirror")
    if learning.local_loss == "logit-adjusted" and not known.classifies:
        rule = f"needs classes, but {learning.task} has none; use plain or prox"
        raise ScenarioError("learning.local_loss", learning.local_loss, rule)
    network = known.networks[0] if learning.network == "auto" else learning.network
    model = known.model(learning, network)
    if learning.recalibrate_statistics and not model.statistics:
        rule = f"needs batch normalisation, but this {network} has none; set it to 0"
        raise ScenarioError("learning.recalibrate_statistics", learning.recalibrate_statistics, rule)
    return model


def name_of(learning: Learning) -> str:
    """The name of the task of a scenario, equal on every machine: a path does not count."""
    return learning.task if learning.task in TASKS else _external(learning).name


def class_names(task: Task) -> tuple[str, ...]:
    """The names of a task's classes, or their numbers if they have no names."""
    names = getattr(task, "class_names", ())
    return tuple(names) if len(names) == task.classes else tuple(map(str, range(task.classes)))


def is_from_file(learning: Learning) -> bool:
    """Whether the task of a scenario is in a Python file of the user."""
    return learning.task not in TASKS and names_python_file(learning.task)


def local_task_of(learning: Learning) -> LocalTask:
    """The task of devices with their own data."""
    if not is_from_file(learning):
        rule = "brings its own data; for devices with their own data, name a task as FILE.py:TASK"
        raise ScenarioError("learning.task", learning.task, rule)
    return local_task_from_file(learning)


def _external(learning: Learning) -> Task | LocalTask:
    return named_in_file(learning) if is_from_file(learning) else _package_task(learning)


def _external_task(learning: Learning) -> Task:
    return task_from_file(learning) if is_from_file(learning) else _package_task(learning)


def _package_task(learning: Learning) -> Task:
    """A task of another package, built from the section `learning` of the scenario."""
    offered = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in TASKS}
    if learning.task not in offered:
        known = ", ".join([*TASKS, *sorted(offered)])
        raise ScenarioError("learning.task", learning.task, f"must be one of {known}, or your own as FILE.py:TASK")
    task: Task = offered[learning.task].load()(learning)
    return task
