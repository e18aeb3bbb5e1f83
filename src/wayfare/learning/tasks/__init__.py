"""The tasks a scenario can name."""

from __future__ import annotations

from wayfare.errors import ScenarioError, UnavailableError
from wayfare.learning.tasks.base import Classification, Evaluation, Metric, Task
from wayfare.learning.tasks.fashion_small import fashion_small
from wayfare.scenario.model import Learning

__all__ = ["Classification", "Evaluation", "Metric", "Task", "load_task"]


def load_task(learning: Learning) -> Task:
    """The task of a scenario, its data loaded."""
    match learning.task:
        case "fashion-small":
            return fashion_small(learning.hidden)
        case "cifar10":
            raise UnavailableError(
                "learning.task = 'cifar10': this version does not have the CIFAR-10 task yet; "
                "use fashion-small, or this scenario's contacts and radio without training"
            )
        case unknown:
            raise ScenarioError("learning.task", unknown, "must be one of fashion-small, cifar10")
