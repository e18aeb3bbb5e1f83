"""A task of one's own from a file: ``mine.py:task``, or ``mine.py`` where it is called ``task``."""

from __future__ import annotations

import hashlib
import inspect
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from wayfare.errors import ScenarioError
from wayfare.learning.chance import chance_of_ones_own
from wayfare.learning.tasks.base import Task
from wayfare.methods.from_file import module_of
from wayfare.scenario.model import Learning

_FIELD = "learning.task"


def task_from_file(learning: Learning) -> Task:
    """The task that a scenario names: an object of the file, or what a function of it makes.

    The schemes of a study share one task. It is made again after `forget_tasks`, or when the file was edited.
    """
    with chance_of_ones_own(torch.device("cpu")) as set_seed:
        # Every process begins with the same weights of a module that the file makes.
        set_seed(0)
        module, _ = module_of(learning.task, _FIELD)
        return _task(learning, hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest())


@lru_cache(maxsize=2)
def _task(learning: Learning, content: str) -> Task:
    text = learning.task
    module, name = module_of(text, _FIELD)
    name = name or "task"
    found = vars(module).get(name)
    if found is None:
        raise ScenarioError(_FIELD, text, f"the file has no {name}; it has {_listed(module)}")
    if isinstance(found, Task):
        return found
    if not callable(found):
        raise ScenarioError(
            _FIELD, text, f"{name} is {type(found).__name__}; must be a task, or a function that makes one"
        )
    try:
        made = found(learning) if inspect.signature(found).parameters else found()
    except Exception as error:
        raise ScenarioError(_FIELD, text, f"{name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Task):
        raise ScenarioError(_FIELD, text, f"{name} gave {type(made).__name__}; must be a task, as `own_task` makes it")
    return made


def forget_tasks() -> None:
    """Make tasks of files again when they are next asked for: their data may have changed."""
    _task.cache_clear()


def _listed(module: ModuleType) -> str:
    """What of a file may be a task."""
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Task) or (inspect.isfunction(value) and value.__module__ == module.__name__)
    ]
    return ", ".join(own) or "no function"
