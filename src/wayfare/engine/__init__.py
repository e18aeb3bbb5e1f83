"""Local training: engines that give equal results at different speeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wayfare.engine.base import Burst, Engine, LocalTraining
from wayfare.engine.reference import Reference
from wayfare.engine.stacked import StackedMlp
from wayfare.engine.trainer import Policy, Trainer, Training
from wayfare.errors import ScenarioError

__all__ = ["ENGINES", "Burst", "Engine", "LocalTraining", "Policy", "Trainer", "Training", "make_engine"]

ENGINES: Mapping[str, Callable[[LocalTraining], Engine]] = {"reference": Reference, "stacked": StackedMlp}


def make_engine(name: str, training: LocalTraining) -> Engine:
    """The engine of a name; `auto` is the fastest that fits the model and the machine."""
    if name == "auto":
        name = "stacked"
    if name not in ENGINES:
        raise ScenarioError("--engine", name, f"must be one of auto, {', '.join(ENGINES)}")
    return ENGINES[name](training)
