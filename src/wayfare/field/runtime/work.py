"""The common work of a fleet: scenario, seed and method, equal on the server and on every device."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace

from wayfare.codec.wire import Layout
from wayfare.device import Terms, terms_of
from wayfare.engine import Engine, make_engine
from wayfare.errors import ScenarioError
from wayfare.field.runtime.messages import layout_of
from wayfare.identity import identity_of
from wayfare.methods import Method, make_method
from wayfare.methods.guard import Guard
from wayfare.scenario import Scenario
from wayfare.world import World, draw_world, local_training


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
        return draw_world(self.scenario, self.seed)

    @property
    def layout(self) -> Layout:
        return layout_of(self.world.task.name, self.world.task.model)

    @property
    def method(self) -> Method:
        method = make_method(self.scheme_name, self.scenario)
        return method if method.guard is not None else replace(method, guard=self.guard)

    @property
    def terms(self) -> Terms:
        return terms_of(self.scenario, self.method, self.world.link, seed=self.seed)

    def engine(self) -> Engine:
        return make_engine(self.engine_name, local_training(self.world, self.method))

    def identity(self, who: str) -> str:
        """A hash of this work and its participant. A store only works with the work it was created for."""
        identity = json.dumps(identity_of(self.scenario, self.method), sort_keys=True)
        text = f"{self.scenario.model_dump_json()}:{self.seed}:{identity}:{who}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]
