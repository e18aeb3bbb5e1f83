"""The simulator: one method in one world.

Design decisions:

- The server hands down through one function: `ServerSide.hand_down` gives a device its model and what the rule adds. A
  compressed downlink or several servers would fit behind it.
- The evaluated model may be a mean; the model that devices receive never is. Devices that train from the mean would
  start from an older model.
- A device that can never send again stops training under the greedy rule. Models, evaluations and energy are unchanged
  (a test compares), and comparisons of greedy schemes take half the time.
- Relays are linear. A device that hands over x = e + g sets its memory to e - x = -g and keeps its models, so it later
  sends only what is new. A device that takes a newer model W starts from W - x with an empty memory.
- The contact plan alone decides who may relay when, so the rounds in which a local model is needed are known before the
  run.
- A relay carries a limited number of parcels. Without a limit, undeliverable parcels pile up, each as large as a model.
- A free relay does not change the sender's account: its budget, queue, pace and experience stay the same. A device
  hands its update only to a device that can deliver it.
"""

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
