"""The tasks that a scenario can name: Wayfare's, those in a file, and those of other packages (`wayfare.tasks`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from wayfare.errors import ScenarioError
from wayfare.learning.known import KNOWN, checked_network
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
    "is_local",
    "load_task",
    "local_task",
    "local_task_of",
    "model_of",
    "name_of",
    "own_task",
    "simulated_task",
]

GROUP = "wayfare.tasks"


@dataclass(frozen=True, slots=True)
class _Builders:
    """How to build one of Wayfare's tasks and its network."""

    model: Callable[[Learning, str], Model]
    task: Callable[[Learning, Model], Task]


_BUILDERS: Mapping[str, _Builders] = {
    "fashion-small": _Builders(fashion_small.fashion_small_model, fashion_small.fashion_small_task),
    "fashion": _Builders(images.set_model, images.set_task),
    "cifar10": _Builders(images.set_model, images.set_task),
    "argoverse": _Builders(argoverse.argoverse_model, argoverse.argoverse_task),
}


def load_task(learning: Learning) -> Task:
    if learning.backbone != NO_BACKBONE:
        return pretrained.pretrained_task(learning)
    if learning.task in KNOWN:
        return _BUILDERS[learning.task].task(learning, model_of(learning))
    return _external_task(learning)


def model_of(learning: Learning) -> Model:
    """The network of a scenario, without its data."""
    if learning.backbone != NO_BACKBONE:
        return pretrained.pretrained_model(learning)
    if learning.task not in KNOWN:
        return _external(learning).model
    network = checked_network(learning)
    model = _BUILDERS[learning.task].model(learning, network)
    if learning.recalibrate_statistics and not model.statistics:
        rule = f"needs batch normalisation, but this {network} has none; set it to 0"
        raise ScenarioError("learning.recalibrate_statistics", learning.recalibrate_statistics, rule)
    return model


def name_of(learning: Learning) -> str:
    """The name of the task of a scenario, equal on every machine: a path does not count."""
    return learning.task if learning.task in KNOWN else _external(learning).name


def class_names(task: Task) -> tuple[str, ...]:
    """The names of a task's classes, or their numbers if they have no names."""
    names = getattr(task, "class_names", ())
    return tuple(names) if len(names) == task.classes else tuple(map(str, range(task.classes)))


def is_from_file(learning: Learning) -> bool:
    """Whether the task of a scenario is in a Python file of the user."""
    return learning.task not in KNOWN and names_python_file(learning.task)


def is_local(learning: Learning) -> bool:
    """Whether only devices have the data of the task."""
    return is_from_file(learning) and isinstance(named_in_file(learning), LocalTask)


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
    offered = {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in KNOWN}
    if learning.task not in offered:
        known = ", ".join([*KNOWN, *sorted(offered)])
        raise ScenarioError("learning.task", learning.task, f"must be one of {known}, or your own as FILE.py:TASK")
    task: Task = offered[learning.task].load()(learning)
    return task
