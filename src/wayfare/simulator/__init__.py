"""The simulator: a scheme in a world."""

from wayfare.simulator.events import ContactEvent, EvaluationEvent, MetricEvent, Observer
from wayfare.simulator.loop import Outcome, Simulation
from wayfare.simulator.world import World, draw_world

__all__ = ["ContactEvent", "EvaluationEvent", "MetricEvent", "Observer", "Outcome", "Simulation", "World", "draw_world"]
