"""The simulator: a scheme in a world."""

from wayfare.simulator.checkpoint import SimulationState, state_from_plain
from wayfare.simulator.checks import Checks
from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer, RelayEvent
from wayfare.simulator.loop import Outcome, Simulation
from wayfare.simulator.world import World, draw_world, fingerprint

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
    "World",
    "draw_world",
    "fingerprint",
    "state_from_plain",
]
