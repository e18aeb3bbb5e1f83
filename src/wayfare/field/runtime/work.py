"""What a fleet works on: a scenario, a seed and a scheme, the same on the server and on every device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from wayfare.codec.wire import Layout
from wayfare.engine import Compute, Engine, LocalTraining, make_engine
from wayfare.errors import ScenarioError
from wayfare.field.runtime.messages import layout_of
from wayfare.learning.descent import descent_of
from wayfare.learning.local_loss import make_local_loss
from wayfare.learning.schedule import Schedule
from wayfare.methods import Method, make_method
from wayfare.scenario import Scenario
from wayfare.world import World, draw_world


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Drawn out by everyone for himself: nothing of it travels."""

    scenario: Scenario
    seed: int = 0
    scheme_name: str = "mads"
    engine_name: str = "auto"

    def __post_init__(self) -> None:
        server, learning = self.scenario.server, self.scenario.learning
        if learning.local_loss == "prox":
            # While an upload is on its way, what a device's learning counts from is not what it received.
            rule = "is for the simulator; in the field plain and logit-adjusted are there"
            raise ScenarioError("learning.local_loss", learning.local_loss, rule)
        if not server.is_plain:
            field, value = ("step", server.step) if server.optimizer == "sgd" else ("optimizer", server.optimizer)
            raise ScenarioError(
                f"server.{field}", value, "is for the simulator; in the field updates are added as they are"
            )
        if server.average_rounds:
            rule = "is for the simulator; in the field the model itself is what is handed on"
            raise ScenarioError("server.average_rounds", server.average_rounds, rule)
        if learning.recalibrate_statistics:
            rule = "is for the simulator; in the field the server holds no samples"
            raise ScenarioError("learning.recalibrate_statistics", learning.recalibrate_statistics, rule)

    @property
    def world(self) -> World:
        """Data, first model, contacts and channels."""
        return draw_world(self.scenario, self.seed)

    @property
    def layout(self) -> Layout:
        """The model as messages know it."""
        return layout_of(self.scenario.learning.task, self.world.task.model)

    @property
    def scheme(self) -> Method:
        """Decides what a device sends."""
        scheme = make_method(self.scheme_name, self.scenario)
        mixing_weight = getattr(scheme, "mixing_weight", None)
        if mixing_weight is not None and mixing_weight(1) is not None:
            raise ScenarioError("scheme", self.scheme_name, "mixes models at the server; in the field updates add up")
        if getattr(scheme, "relays", False):
            raise ScenarioError("scheme", self.scheme_name, "relays updates over other devices, the field does not")
        return scheme

    def engine(self) -> Engine:
        """Takes the local steps, as in the simulator."""
        world, learning = self.world, self.scenario.learning
        training = LocalTraining(
            task=world.task,
            batches=world.batches,
            learning_rate=learning.learning_rate,
            schedule=Schedule(learning.schedule, self.scenario.rounds),
            local_loss=make_local_loss(learning, world.task, world.held, Compute().device),
            descent=descent_of(learning, self.scheme.local),
        )
        return make_engine(self.engine_name, training)

    def identity(self, who: str) -> str:
        """Stands for somebody's part in this work: a store goes on only with the work it was begun for."""
        text = f"{self.scenario.model_dump_json()}:{self.seed}:{self.scheme_name}:{who}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]
