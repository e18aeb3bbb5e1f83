"""Evaluation of the model for each device of a world."""

from __future__ import annotations

import numpy as np

from wayfare.errors import InputError, ScenarioError
from wayfare.learning.device_scores import DeviceScores, JudgedInParts
from wayfare.learning.partition import class_counts
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.division import Divided
from wayfare.world.draw import World
from wayfare.world.holding import among_devices


def device_scores(world: World, task: Task) -> DeviceScores | None:
    """Evaluates the model for each device; None unless the scenario enables it. ``task`` has its data on the device."""
    if not world.scenario.learning.evaluate_devices:
        return None
    if isinstance(task, Divided) and task.test_division is not None and isinstance(task, JudgedInParts):
        return DeviceScores(task, task.metric, among_devices(world.scenario, task, task.test_division), None)
    classes = task.test_classes if isinstance(task, JudgedInParts) else None
    if not isinstance(task, JudgedInParts) or classes is None:
        rule = f"the task {task.name} needs test_vehicles, or accuracy as its score and classes for the partition"
        raise ScenarioError("learning.evaluate_devices", True, rule)
    counts = class_counts(task.class_of_samples(), task.classes, world.held)
    parts = [np.flatnonzero(classes == label) for label in range(task.classes)]
    untested = [label for label in range(task.classes) if counts[:, label].any() and not len(parts[label])]
    if untested:
        listed = ", ".join(map(str, untested))
        raise InputError(f"{task.name}: no test sample has the class {listed}, so devices with it cannot be evaluated")
    held = [label for label in range(task.classes) if len(parts[label])]
    shares = counts[:, held] / counts.sum(axis=1, keepdims=True)
    return DeviceScores(task, task.metric, [parts[label] for label in held], shares)
