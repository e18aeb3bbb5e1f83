"""Who holds which training samples in the world of a scenario."""

from __future__ import annotations

from wayfare.arrays import Ints
from wayfare.errors import ScenarioError
from wayfare.learning.partition import split
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.division import Divided
from wayfare.mobility.traces import Trace
from wayfare.scenario import Scenario
from wayfare.scenario.mobility import TraceMobility
from wayfare.scenario.partition import OwnPartition


def held_samples(scenario: Scenario, task: Task, seed: int) -> list[Ints]:
    """The sample numbers of every device: dealt as the partition says, or where the task says they are."""
    partition, division = scenario.learning.partition, task.division if isinstance(task, Divided) else None
    if division is None:
        if isinstance(partition, OwnPartition):
            rule = f"the task {task.name} does not say who holds which sample; must be another partition"
            raise ScenarioError("learning.partition.kind", partition.kind, rule)
        return split(task.class_of_samples(), task.classes, scenario.fleet.devices, partition, seed)
    if not isinstance(partition, OwnPartition):
        rule = f"the task {task.name} says who holds which sample; must be own"
        raise ScenarioError("learning.partition.kind", partition.kind, rule)
    if not isinstance(scenario.mobility, TraceMobility):
        return division.among(scenario.fleet.devices)
    trace = Trace(scenario.mobility, range_m=scenario.radio.range_m)
    chosen = trace.selection(scenario.fleet.devices, scenario.duration_s)
    return division.among_vehicles(chosen.devices, trace.recording().names)
