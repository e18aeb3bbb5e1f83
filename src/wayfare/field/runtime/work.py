"""The common work of a fleet: model, method and terms, equal on the server and on every device.

It needs no data. The simulated world, with motion, contacts and a partition, exists only for a plan.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.device import Terms, terms_of
from wayfare.engine import Engine, make_engine
from wayfare.errors import ScenarioError
from wayfare.field.runtime.aggregation import Aggregation
from wayfare.field.runtime.database import vector_bytes
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import WIRE_FORMAT, Agreement, layout_of
from wayfare.identity import method_identity
from wayfare.learning.descent import descent_of
from wayfare.learning.models.base import Model
from wayfare.learning.sums import Sums, SumsModel
from wayfare.learning.tasks import is_from_file, model_of, name_of
from wayfare.learning.tasks.from_file import named_in_file
from wayfare.learning.tasks.local import LocalTask
from wayfare.learning.tasks.pretrained import backbone_digest
from wayfare.methods import Collection, Method, make_method
from wayfare.methods.guard import Guard
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.server import senders_of, terms_for, unknown_senders
from wayfare.streams import FLEET, Stream, generator
from wayfare.world import World, draw_world, link_of, local_training, world_for

# The samples of a device for which the steps of class statistics are made; `coarseness` changes the steps.
_SAMPLES = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Every participant derives it from the same inputs; it is never transmitted."""

    scenario: Scenario
    seed: int = 0
    scheme_name: str = "mads"
    engine_name: str = "auto"
    guard: Guard | None = field(default_factory=Guard)  # unless the scheme names one

    def __post_init__(self) -> None:
        samples, method = self.scenario.learning.recalibrate_statistics, self.method
        if samples:
            rule = "works only in the simulator; in the field the server has no samples"
            raise ScenarioError("learning.recalibrate_statistics", samples, rule)
        if method.peers is not None:
            rule = "relays updates between devices; in the field devices exchange only with the server"
            raise ScenarioError("scheme", method.name, rule)

    @property
    def world(self) -> World:
        """The simulated world of a plan."""
        return world_for(draw_world(self.scenario, self.seed), self.method)

    def engine(self) -> Engine:
        """Trains on the data of the simulated world."""
        return make_engine(self.engine_name, local_training(self.world, self.method))

    @property
    def local_task(self) -> LocalTask | None:
        """The task of devices with their own data; None: a task that brings its data."""
        learning = self.scenario.learning
        found = named_in_file(learning) if is_from_file(learning) else None
        return found if isinstance(found, LocalTask) else None

    @property
    def model(self) -> Model:
        """A model that is named needs no data. With a plan, the steps of class statistics depend on the samples."""
        collection, task = self.method.local.collects(), self.local_task
        if collection is None:
            return model_of(self.scenario.learning)
        return self.world.task.model if task is None else _sums_of(collection, task, self.scheme_name)

    @property
    def initial_model(self) -> Tensor:
        return self.model.initial(generator(self.seed, Stream.INITIAL_MODEL, FLEET))

    @property
    def layout(self) -> Layout:
        """The shape of the model, and the weights of its backbone: updates on other weights do not fit."""
        learning, model = self.scenario.learning, self.model
        return layout_of(" on ".join(filter(None, (name_of(learning), backbone_digest(learning)))), model)

    @property
    def method(self) -> Method:
        method = make_method(self.scheme_name, self.scenario)
        # A guard scales uploads, and statistics must arrive as they are.
        without = method.guard is not None or method.local.collects() is not None
        return method if without else replace(method, guard=self.guard)

    @property
    def link(self) -> Link:
        return link_of(self.scenario, self.model)

    @property
    def terms(self) -> Terms:
        return terms_of(self.scenario, self.method, self.link, seed=self.seed)

    @property
    def budget_joules(self) -> float:
        """The energy budget of a device without a plan: the mean of the scenario."""
        fleet = self.scenario.fleet
        if fleet.energy_total_joules is not None:
            return fleet.energy_total_joules / fleet.devices
        return (fleet.energy_min_joules + fleet.energy_max_joules) / 2

    def aggregation(self, membership: Membership | None) -> Aggregation:
        """What the server does with uploads; without a membership as in the simulator, with all devices of a plan."""
        method, scenario = self.method, self.scenario
        return Aggregation(
            rule=method.server,
            terms=terms_for(self.model, scenario),
            senders=senders_of(self.world, method) if membership is None else unknown_senders(scenario, method),
            average_rounds=scenario.server.average_rounds,
            guard=method.guard,
            membership=membership,
            max_learning_rate=1 / pull if (pull := descent_of(scenario.learning, method.local).pull) else math.inf,
        )

    def identity(self, fleet: str, who: str) -> dict[str, Any]:
        """What ties a store to this work. Everything else, such as the learning rate, may change between starts."""
        layout = self.layout
        return {
            "fleet": fleet,
            "name": who,
            "model": {
                "id": layout.model_id.hex(),
                "parameters": layout.parameters,
                "statistics": layout.statistics,
            },
            # Only the server has a guard.
            "method": method_identity(replace(self.method, guard=None), files=False),
        }

    @property
    def agreement(self) -> Agreement:
        """Digests of what a device and the server must have in common, by name."""
        kinds = {kind: type(part).__qualname__ for kind, part in self.method.parts.items() if kind != "guard"}
        named = {
            "task": self.layout.model_id.hex(),
            # Without values: a later version may have more of them.
            "scheme": str(sorted(kinds.items())),
            # Not the initial model: processors may round it differently.
            "seed": str(self.seed),
            "wire format": str(WIRE_FORMAT),
        }
        return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in named.items()}

    def server_identity(self, fleet: str, who: str) -> dict[str, Any]:
        """The identity of a ledger: also what its replay depends on."""
        learning, server = self.scenario.learning, self.scenario.server
        replay: dict[str, Any] = {
            "initial_model": hashlib.sha256(vector_bytes(self.initial_model)).hexdigest()[:16],
            "server.average_rounds": server.average_rounds,
            "guard": repr(self.method.guard),
        }
        if self.method.server.uses_reach:
            replay |= {"learning.learning_rate": learning.learning_rate, "learning.schedule": learning.schedule}
        return self.identity(fleet, who) | {"replay": replay}


def _sums_of(collection: Collection, task: LocalTask, scheme: str) -> SumsModel:
    """The statistics of devices with their own data. Nobody knows how many samples they will have."""
    rule = None
    if collection.pilot:
        rule = "takes axes from pilot samples, which the server does not have; use pilot=0"
    elif collection.trains:
        rule = "trains after its statistics, which needs a plan; use statistics"
    elif not task.wanted.classes or len(task.wanted.shape) != 1:
        rule = f"needs vectors with classes, and the task {task.name} has others"
    if rule is not None:
        raise ScenarioError("scheme", scheme, rule)
    (features,) = task.wanted.shape
    layout = Sums(collection=collection, classes=task.wanted.classes, features=features, samples=_SAMPLES)
    return SumsModel(layout)
