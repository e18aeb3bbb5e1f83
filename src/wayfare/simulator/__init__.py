"""The simulator: one method in one world."""

from wayfare.device import Checks
from wayfare.simulator.checkpoint import SimulationState, state_from_plain
from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer, RelayEvent
from wayfare.simulator.loop import Outcome, Simulation

__all__ = [
    "Checks",
    "ContactEvent",
    "EvaluationEvent",
    "MetricEvent",
    "Observer",
    "Outcome",
    "RelayEvent",
    "Simulation",
    "SimulationState",
    "state_from_plain",
]
