"""How long runs take: a guess before any has run, and an estimate from those that have."""

from __future__ import annotations

from wayfare.learning.tasks import Task, model_of
from wayfare.scenario import Scenario
from wayfare.schemes import Scheme

# A scheme that trains in contacts only takes about a quarter of the time on the embedded default (1.4 s against 5.8 s).
_IN_CONTACT_ONLY = 0.25


def relative_cost(scenario: Scenario, scheme: Scheme, task: Task | None = None) -> float:
    """Multiplications of the local steps, roughly: good for putting runs in order, not for a clock."""
    steps = scenario.rounds * scenario.fleet.devices * scenario.learning.batch_size
    share = 1.0 if getattr(scheme, "trains_between_contacts", True) else _IN_CONTACT_ONLY
    model = task.model if task else model_of(scenario.learning)
    return steps * share * model.parameters
