"""The training samples of each device in the world of a scenario."""

from __future__ import annotations

from wayfare.arrays import Ints
from wayfare.contacts import device_names
from wayfare.errors import ScenarioError
from wayfare.learning.partition import split
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.division import Divided, Division
from wayfare.mobility.traces import Trace
from wayfare.scenario import Scenario
from wayfare.scenario.mobility import TraceMobility
from wayfare.scenario.partition import OwnPartition


def held_samples(scenario: Scenario, task: Task, seed: int) -> list[Ints]:
    """The sample numbers of every device, by the scenario's partition or by the task's own division."""
    partition = scenario.learning.partition
    if not isinstance(task, Divided) or task.division is None:
        if isinstance(partition, OwnPartition):
            rule = f"the task {task.name} does not divide its samples among devices; choose another partition"
            raise ScenarioError("learning.partition.kind", partition.kind, rule)
        return split(task.class_of_samples(), task.classes, scenario.fleet.devices, partition, seed)
    if not isinstance(partition, OwnPartition):
        rule = f"must be own, because the task {task.name} divides its samples among devices"
        raise ScenarioError("learning.partition.kind", partition.kind, rule)
    return among_devices(scenario, task, task.division)


def among_devices(scenario: Scenario, task: Divided, division: Division) -> list[Ints]:
    """The samples of every device in a division of the training or test set."""
    trained = task.division.vehicles if task.division is not None else ()
    if not division.vehicles or (division is task.division and not isinstance(scenario.mobility, TraceMobility)):
        return division.among(scenario.fleet.devices)
    if not isinstance(scenario.mobility, TraceMobility):
        return division.among_vehicles(trained, trained, "the training set")
    nodes = Trace(scenario.mobility, range_m=scenario.radio.range_m).recording().names
    return division.among_vehicles(device_names(scenario), nodes, "the trace")
