"""Your own task from a file: ``mine.py:task``, or ``mine.py`` if it is called ``task``."""

from __future__ import annotations

import hashlib
import inspect
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from wayfare.errors import ScenarioError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.tasks.base import Task
from wayfare.learning.tasks.local import LocalTask
from wayfare.methods.from_file import module_of, own_folders
from wayfare.methods.own_code import described
from wayfare.scenario.model import Learning

_FIELD = "learning.task"


def task_from_file(learning: Learning) -> Task:
    """The task that a scenario names, with its data."""
    found = named_in_file(learning)
    if isinstance(found, LocalTask):
        rule = "has no data: its devices have them; for the simulator, name `simulated_task(task, folders, heldout)`"
        raise ScenarioError(_FIELD, learning.task, rule)
    return found


def local_task_from_file(learning: Learning) -> LocalTask:
    """The task that a scenario names, for devices with their own data."""
    found = named_in_file(learning)
    if not isinstance(found, LocalTask):
        rule = "holds its data itself; for devices with their own data, build it with `local_task(...)`"
        raise ScenarioError(_FIELD, learning.task, rule)
    return found


def named_in_file(learning: Learning) -> Task | LocalTask:
    """An object in the file, or the result of a function in it.

    The schemes of a study share one task. It is built again after `forget_tasks`, or if the file was edited.
    """
    with seeded_generators(torch.device("cpu")) as set_seed:
        # A module built in the file then has the same weights in every process.
        set_seed(0)
        module, _ = module_of(learning.task, _FIELD)
        return _task(learning, hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest())


@lru_cache(maxsize=2)
def _task(learning: Learning, content: str) -> Task | LocalTask:
    text = learning.task
    module, name = module_of(text, _FIELD)
    name = name or "task"
    found = vars(module).get(name)
    if found is None:
        raise ScenarioError(_FIELD, text, f"the file has no {name}; it has {_listed(module)}")
    if isinstance(found, Task | LocalTask):
        return found
    if not callable(found):
        raise ScenarioError(
            _FIELD, text, f"{name} is {type(found).__name__}; must be a task, or a function that returns one"
        )
    try:
        made = found(learning) if inspect.signature(found).parameters else found()
    except Exception as error:
        raise ScenarioError(_FIELD, text, f"{name} failed: {described(error, own_folders())}") from error
    if not isinstance(made, Task | LocalTask):
        raise ScenarioError(
            _FIELD, text, f"{name} returned {type(made).__name__}; must return a task, such as `own_task(...)`"
        )
    return made


def forget_tasks() -> None:
    """Build tasks from files again on their next use, because their data may have changed."""
    _task.cache_clear()


def _listed(module: ModuleType) -> str:
    """The names in a file that may be a task."""
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Task | LocalTask) or (inspect.isfunction(value) and value.__module__ == module.__name__)
    ]
    return ", ".join(own) or "no function"
